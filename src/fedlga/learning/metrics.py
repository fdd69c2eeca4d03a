"""Metrics: what is measured on the test data, by name, and which direction is better.

A metric is one of three: a number for each example, which is averaged (accuracy, mae); a number for all examples
together (a function of your own, or a metric of torchmetrics); or the loss.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn import functional

from fedlga.core.settings import BadInput, suggest
from fedlga.learning.forms import align_targets, aligned, broadcasts
from fedlga.learning.task import describe_error
from fedlga.learning.trees import Tree, describe_tree, name_type

LOSS = "loss"
IGNORED = -100  # a target that counts for nothing: torch's ignore_index
LOWER_IS_BETTER = frozenset(
    ("loss", "error", "mae", "mse", "rmse", "mape", "smape", "perplexity", "wer", "cer", "nll", "brier")
)
TAKES = "a dict of names with functions of (outputs, targets) or torchmetrics metrics, or a list of built-in names"

Function = Callable[[Tree, Tree], Any]


@dataclass(frozen=True)
class Metric:
    """A function of outputs and targets, with the direction that is better: what `metrics()` may return by name."""

    function: Any
    better: str = "higher"

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            raise BadInput(f"Metric: better is {self.better!r}; it takes 'higher' or 'lower'")


@dataclass(frozen=True)
class NamedMetric:
    """A metric in use. `each` gives examples x 2, a sum and what it is divided by; `whole` one number for all."""

    name: str
    higher_is_better: bool
    each: Callable[[Tree, Tree], torch.Tensor] | None = None
    whole: Callable[[Tree, Tree], float] | None = None
    finish: Callable[[float], float] = float

    @property
    def better(self) -> str:
        """The better direction, as a word."""
        return "higher" if self.higher_is_better else "lower"


def _pair(sums: torch.Tensor, counts: torch.Tensor | float) -> torch.Tensor:
    sums = sums.detach().float()
    return torch.stack([sums, torch.zeros_like(sums) + counts], dim=1)


def _accuracy(outputs: Tree, targets: Tree) -> torch.Tensor:
    """Count the right ones: of one label an example, of one label a position, or of several labels an example."""
    _need_tensors("accuracy", outputs, targets)
    targets = align_targets(outputs, targets)
    if targets.is_floating_point():  # several labels: a score above 0 says yes
        if outputs.shape != targets.shape:
            form = f"outputs {describe_tree(outputs)} and targets {describe_tree(targets)}"
            raise BadInput(f"metrics: accuracy of several labels takes the same shape, not {form}")
        right = (outputs > 0) == (targets > 0.5)  # noqa: PLR2004
        return _pair(right.reshape(len(right), -1).sum(1), math.prod(targets.shape[1:]))
    if targets.dim() == 1 and outputs.numel() == len(targets):  # one score for yes or no
        return _pair((outputs.reshape(-1) > 0) == (targets == 1), 1.0)
    if targets.dim() == 1:
        return _pair(outputs.argmax(1) == targets, (targets != IGNORED).float())
    predicted = outputs.argmax(class_dimension(outputs, targets))
    counted = targets != IGNORED
    return _pair(((predicted == targets) & counted).flatten(1).sum(1), counted.flatten(1).sum(1).float())


def _perplexity(outputs: Tree, targets: Tree) -> torch.Tensor:
    _need_tensors("perplexity", outputs, targets)
    if targets.is_floating_point():
        raise BadInput("metrics: 'perplexity' takes targets that are classes")
    moved = outputs.movedim(class_dimension(outputs, targets), 1)
    losses = functional.cross_entropy(moved, targets, reduction="none", ignore_index=IGNORED)
    counted = (targets != IGNORED).reshape(len(targets), -1).sum(1).float()
    return _pair(losses.reshape(len(targets), -1).sum(1), counted)


def _distance(measure: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tree, Tree], torch.Tensor]:
    def each(outputs: Tree, targets: Tree) -> torch.Tensor:
        _need_tensors("this metric", outputs, targets)
        targets = align_targets(outputs, targets)
        if outputs.shape != targets.shape:
            raise BadInput(
                f"metrics: outputs are {describe_tree(outputs)} and targets {describe_tree(targets)}; "
                "a distance takes the same shape"
            )
        return _pair(measure(outputs.float() - targets.float()).reshape(len(outputs), -1).sum(1), outputs[0].numel())

    return each


BUILT_IN: Mapping[str, NamedMetric] = {
    m.name: m
    for m in (
        NamedMetric("accuracy", True, _accuracy),
        NamedMetric("perplexity", False, _perplexity, finish=lambda mean: math.exp(min(mean, 700.0))),
        NamedMetric("mse", False, _distance(torch.square)),
        NamedMetric("rmse", False, _distance(torch.square), finish=math.sqrt),
        NamedMetric("mae", False, _distance(torch.abs)),
    )
}


def class_dimension(outputs: torch.Tensor, targets: torch.Tensor) -> int:
    """Return the dimension of the outputs that holds a score a class: the last, or (images) the second."""
    last = outputs.shape[:-1] == targets.shape
    second = outputs.dim() > 1 and (outputs.shape[0], *outputs.shape[2:]) == tuple(targets.shape)
    if second and (outputs.dim() >= 4 or not last):  # noqa: PLR2004  (images have their channels there)
        return 1
    if last:
        return outputs.dim() - 1
    raise BadInput(
        f"model(): its outputs are {describe_tree(outputs)} for targets {describe_tree(targets)}; "
        "it takes one score a class for each target"
    )


def collect_metrics(given: Any, outputs: Tree, targets: Tree) -> list[NamedMetric]:
    """Return the metrics of a task, from what `metrics()` returned; `outputs` and `targets` are some examples' own.

    Each is tried on them, so that a metric that does not fit is named before anything is trained.
    """
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Mapping):
        named = cast("Mapping[Any, Any]", given)
    elif isinstance(given, list | tuple) and all(isinstance(name, str) for name in cast("Sequence[Any]", given)):
        named = {name: name for name in cast("Sequence[str]", given)}
    else:
        raise BadInput(f"metrics(): got {name_type(given)}; it takes {TAKES}")
    if not named:
        raise BadInput(f"metrics(): got none; it takes {TAKES}")
    return [_bind(name, metric, outputs, targets) for name, metric in named.items()]


def _bind(name: Any, metric: Any, outputs: Tree, targets: Tree) -> NamedMetric:
    if not isinstance(name, str) or not name.isidentifier() or name == LOSS:
        raise BadInput(f"metrics(): got the name {name!r}; it takes a word of letters, digits and _, other than 'loss'")
    if name.endswith(("_slow", "_worst")):
        raise BadInput(f"metrics(): got the name {name!r}; names that end in _slow and _worst are for devices")
    better = metric.better if isinstance(metric, Metric) and isinstance(metric.function, str) else None
    metric = metric.function if better is not None else metric
    known = metric if isinstance(metric, str) else name if metric is None else None
    if known is not None:
        if known not in BUILT_IN:
            raise BadInput(f"metrics(): there is no built-in {known!r}; {suggest(known, BUILT_IN)}")
        built_in = BUILT_IN[known]
        assert built_in.each is not None
        try:
            built_in.each(outputs, targets)
        except BadInput:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise BadInput(f"metrics(): {known!r} does not fit these outputs ({describe_error(error)})") from error
        higher = built_in.higher_is_better if better is None else better == "higher"
        return NamedMetric(name, higher, built_in.each, finish=built_in.finish)
    higher = name not in LOWER_IS_BETTER
    if isinstance(metric, Metric):
        metric, higher = metric.function, metric.better == "higher"
    declared = getattr(metric, "higher_is_better", None)  # torchmetrics says so
    higher = declared if isinstance(declared, bool) else higher
    if _is_torchmetric(metric):
        function: Function = _call_torchmetric(metric)
        if not _takes(function, outputs, targets) and _takes(_with_whole_targets(function), outputs, targets):
            function = _with_whole_targets(function)  # several labels: our table of floats, where it wants integers
    elif _is_torchmetric_class(metric):
        raise BadInput(f"metrics(): {name!r} is a class; it takes an instance of it")
    elif callable(metric):
        function = metric
    else:
        raise BadInput(
            f"metrics(): {name!r} is a {type(metric).__name__}; it takes a function or a torchmetrics metric"
        )
    return _fit(name, function, outputs, targets, higher=higher)


def _fit(name: str, function: Function, outputs: Tree, targets: Tree, *, higher: bool) -> NamedMetric:
    """Return the metric behind a function: one number for each example, or one for all of them."""
    if broadcasts(function, outputs, targets):
        function = aligned(function)
    value = _call(name, function, outputs, targets)
    count = len(targets) if isinstance(targets, torch.Tensor) else None
    if isinstance(value, torch.Tensor) and value.dim() == 1 and len(value) == count and count != 1:
        _as_number(name, value.float().sum())

        def each(outputs: Tree, targets: Tree) -> torch.Tensor:
            return _pair(_call(name, function, outputs, targets), 1.0)

        return NamedMetric(name, higher, each)
    _as_number(name, value)

    def whole(outputs: Tree, targets: Tree) -> float:
        return _as_number(name, _call(name, function, outputs, targets), nan=True)

    return NamedMetric(name, higher, whole=whole)


def _call(name: str, function: Function, outputs: Tree, targets: Tree) -> Any:
    try:
        return function(outputs, targets)
    except Exception as error:
        form = f"outputs {describe_tree(outputs)} and targets {describe_tree(targets)}"
        raise BadInput(f"metrics(): {name!r} failed for {form}: {describe_error(error)}") from error


def _as_number(name: str, value: Any, *, nan: bool = False) -> float:
    takes = "it takes one finite number, or one an example"
    if isinstance(value, bool) or not (isinstance(value, int | float) or hasattr(value, "__float__")):
        raise BadInput(f"metrics(): {name!r} gave a {type(value).__name__}, not a number; {takes}")
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"metrics(): {name!r} gave {describe_tree(value)}; {takes}") from error
    if not math.isfinite(number) and not nan:
        raise BadInput(f"metrics(): {name!r} gave {number}; {takes}")
    return number


def _is_torchmetric(metric: Any) -> bool:
    library = sys.modules.get("torchmetrics")
    return library is not None and isinstance(metric, library.Metric)


def _is_torchmetric_class(metric: Any) -> bool:
    library = sys.modules.get("torchmetrics")
    return library is not None and isinstance(metric, type) and issubclass(metric, library.Metric)


def _takes(function: Function, outputs: Tree, targets: Tree) -> bool:
    try:
        function(outputs, targets)
    except Exception:  # it is named when it is bound
        return False
    return True


def _with_whole_targets(function: Function) -> Function:
    def call(outputs: Tree, targets: Tree) -> Any:
        yes_or_no = isinstance(targets, torch.Tensor) and bool(((targets == 0) | (targets == 1)).all())
        return function(outputs, targets.long() if yes_or_no else targets)

    return call


def _call_torchmetric(metric: Any) -> Function:
    def compute(outputs: Tree, targets: Tree) -> Any:
        metric.reset()
        metric.update(outputs, targets)
        value = metric.compute()
        metric.reset()
        return value

    return compute


def _need_tensors(name: str, *trees: Tree) -> None:
    if not all(isinstance(tree, torch.Tensor) for tree in trees):
        found = " and ".join(describe_tree(tree) for tree in trees)
        raise BadInput(f"metrics: {name} takes outputs and targets that are tensors, not {found}")
