"""A task fitted to its data: the model as one vector, the loss, the metrics, and whether there are classes."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedlga.core.process import seed_generators
from fedlga.core.randomness import Stream, torch_seed
from fedlga.core.settings import BadInput
from fedlga.learning.accelerator import CPU
from fedlga.learning.augment import resize_images
from fedlga.learning.examples import Examples
from fedlga.learning.flat_model import BATCH_NORMS, FlatModel, call_module
from fedlga.learning.forms import align_targets, aligned, broadcasts
from fedlga.learning.metrics import BUILT_IN, IGNORED, LOSS, NamedMetric, class_dimension, collect_metrics
from fedlga.learning.task import Task, describe_error
from fedlga.learning.torch_private import speed_up_products
from fedlga.learning.trees import Tree, describe_tree, leaves_of, map_tree

if TYPE_CHECKING:
    from fedlga.learning.examples import Batch
    from fedlga.learning.flat_model import Criterion

PROBED = 64  # examples that loss and metrics are tried on before the run
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Problem:
    """What training and evaluation need to know of a task."""

    model: FlatModel  # its criterion is for training
    loss: Criterion  # for evaluation
    metrics: Sequence[NamedMetric]  # the target metric first
    classes: int | None  # None: targets are not one class an example
    output_shape: tuple[int, ...] | None = None  # of one example, if all outputs are a tensor of one shape


def fit_task(
    task: Task,
    examples: Examples,
    seed: int,
    *,
    device: torch.device = CPU,
    resize: int = 0,
    label_smoothing: float = 0.0,
    target: str | None = None,
) -> Problem:
    """Return a task with its model, tried on some of its examples; BadInput names the function that does not fit.

    `target` is the target metric: it comes first.
    """
    batch = examples.batch(torch.tensor([0, len(examples) - 1], device="cpu"))
    batch = resize_batch(batch, resize)
    with seed_generators(torch_seed(seed, Stream.WEIGHTS)):
        with CPU:  # whatever torch's default device is
            module = task.call("model")
        if not isinstance(module, nn.Module):
            raise BadInput(f"{task.where}model() gave a {type(module).__name__}; it takes an nn.Module")
        _check_parameters(task, module)
        probe = copy.deepcopy(module).eval()
        outputs = _try_model(task, probe, batch[0])
        rows = torch.from_numpy(np.unique(np.linspace(0, len(examples) - 1, PROBED).astype(np.int64)))
        some = resize_batch(examples.batch(rows), resize)
        outputs = _try_model(task, probe, some[0])
        criterion = _choose_loss(task, outputs, some[1], device)
        if task.named and outputs.shape[1] != task.named["classes"]:
            scores, wanted = outputs.shape[1], task.named["classes"]
            raise BadInput(f"model: {task.name!r} scores {scores} classes, and the dataset has {wanted}")
        classes = _count_classes(task, outputs, some[1], examples, criterion)
        _try_loss(task, criterion, probe, batch)
        changing = _find_changing_buffers(task, module, batch)
        channels_last = _takes_channels_last(module, criterion, batch)
        needs_pairs = _needs_pairs(module, batch)
    metrics = _choose_metrics(task, criterion, outputs, some[1])
    if target == LOSS and LOSS not in [metric.name for metric in metrics]:
        metrics.append(NamedMetric(LOSS, higher_is_better=False))
    metrics.sort(key=lambda metric: metric.name != target)
    shape = tuple(outputs.shape[1:]) if isinstance(outputs, torch.Tensor) else None
    training: Criterion = criterion
    if label_smoothing:
        if criterion not in (functional.cross_entropy, sequence_cross_entropy):
            raise BadInput("label_smoothing: the task's loss is not the built-in cross-entropy; smooth it in loss()")
        training = functools.partial(cast("Any", criterion), label_smoothing=label_smoothing)
    speed_up_products(module)
    flat = FlatModel(
        module.to(device).train(), training, channels_last=channels_last, changing=changing, needs_pairs=needs_pairs
    )
    return Problem(flat, criterion, metrics, classes, shape)


def resize_batch(batch: Batch, side: int) -> Batch:
    """Return a batch with images of another size; 0: as they are."""
    return (resize_images(batch[0], side), batch[1]) if side else batch


def _check_parameters(task: Task, module: nn.Module) -> None:
    trainable = [p for p in module.parameters() if p.requires_grad]
    if any(isinstance(p, nn.UninitializedParameter) for p in module.parameters()):
        raise BadInput(f"{task.where}model() has lazy layers without a size; call it once on an example in model()")
    try:
        copy.deepcopy(module)
    except Exception as error:
        raise BadInput(f"{task.where}model() cannot be copied ({describe_error(error)})") from error
    if not trainable:
        raise BadInput(f"{task.where}model() has no trainable parameters")
    if others := {str(p.dtype) for p in trainable if p.dtype not in FLOATS}:
        raise BadInput(
            f"{task.where}model() has parameters of {', '.join(sorted(others))}; "
            "it takes torch.float32, torch.float16 or torch.bfloat16"
        )


def _try_model(task: Task, probe: nn.Module, inputs: Tree) -> Any:
    try:
        with torch.no_grad():
            outputs = call_module(probe, inputs)
    except Exception as error:
        each = describe_tree(map_tree(lambda leaf: leaf[0], inputs))
        raise BadInput(
            f"{task.where}model() does not take these inputs, {each} each ({describe_error(error)})"
        ) from error
    count = len(next(leaves_of(inputs)))
    if isinstance(outputs, torch.Tensor) and (outputs.dim() == 0 or len(outputs) != count):
        raise BadInput(
            f"{task.where}model() gives {describe_tree(outputs)} for {count} examples; it takes one output an example"
        )
    return outputs


def _make_loss(task: Task) -> Any:
    if not (inspect.isclass(task.loss) and issubclass(task.loss, nn.Module)):
        return task.loss
    try:
        return task.loss()
    except TypeError as error:
        reason = describe_error(error)
        raise BadInput(f"{task.where}loss cannot be made ({reason}); it takes an instance") from error


def _choose_loss(task: Task, outputs: Any, targets: Tree, device: torch.device) -> Criterion:
    """Return the task's loss; without one: cross-entropy for classes, the mean squared error for other numbers."""
    loss = _make_loss(task)
    if loss is not None:
        if not callable(loss):
            raise BadInput(
                f"{task.where}loss is a {type(loss).__name__}; "
                "it takes a torch loss or a function of outputs and targets"
            )
        if isinstance(loss, nn.Module):
            if any(p.requires_grad for p in loss.parameters()):
                raise BadInput(
                    f"{task.where}loss has parameters of its own, which nothing trains; put them into model()"
                )
            loss = loss.to(device)
        if loss is functional.cross_entropy:
            return functional.cross_entropy
        given: Criterion = cast("Criterion", loss)
        return aligned(given) if broadcasts(given, outputs, targets) else given
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        raise BadInput(
            f"{task.where}model() gives {describe_tree(outputs)} for targets {describe_tree(targets)}; "
            "without a loss(outputs, targets) of the task it takes tensors"
        )
    if targets.is_floating_point():
        if outputs.numel() != targets.numel():
            raise BadInput(
                f"{task.where}model() gives {describe_tree(outputs)} for targets {describe_tree(targets)}; "
                "it takes as many numbers, or a loss(outputs, targets) in the task"
            )
        return mean_squared_error
    if targets.dim() == 1 and (outputs.dim() != 2 or outputs.shape[1] < 2):  # noqa: PLR2004
        raise BadInput(
            f"{task.where}model() gives {describe_tree(outputs)} for {len(targets)} targets that are whole numbers, "
            "so classes; it takes one score a class (for a regression, give y as float)"
        )
    class_dimension(outputs, targets)  # raises if there is none
    return functional.cross_entropy if targets.dim() == 1 else sequence_cross_entropy


def mean_squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error, of targets in the form of the outputs: (n,) and (n, 1) would be n x n pairs."""
    return functional.mse_loss(outputs.float(), align_targets(outputs, targets).float())


def sequence_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """Return the cross-entropy of one class a position; targets of -100 count for nothing."""
    scores = outputs.movedim(class_dimension(outputs, targets), 1)
    loss = functional.cross_entropy(scores, targets, label_smoothing=label_smoothing)
    return torch.where((targets != IGNORED).any(), loss, torch.zeros_like(loss))  # nothing counts: not 0 / 0


def _try_loss(task: Task, criterion: Criterion, module: nn.Module, batch: Batch) -> None:
    try:
        outputs = call_module(copy.deepcopy(module).train(), batch[0])
    except Exception as error:
        raise BadInput(f"{task.where}model() failed in training ({describe_error(error)})") from error
    form = f"outputs {describe_tree(outputs)} and targets {describe_tree(batch[1])}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch only warns where it broadcasts outputs and targets
            loss: Any = criterion(outputs, batch[1])
    except Exception as error:
        hint = _hint_at_floats(outputs, batch[1])
        raise BadInput(f"{task.where}loss() does not take {form} ({describe_error(error)}){hint}") from error
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise BadInput(f"{task.where}loss() gave {describe_tree(loss)} for {form}; it takes one number, the mean loss")
    try:
        loss.backward()
    except RuntimeError as error:
        raise BadInput(f"{task.where}loss() cannot be differentiated ({describe_error(error)})") from error
    _check_mean(task, criterion, module, batch)


def _hint_at_floats(outputs: Any, targets: Tree) -> str:
    """Return what helps if whole numbers, so classes, meet one output each: a loss for yes and no takes floats."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        return ""
    return "; y is whole numbers, so classes: give it as float" if outputs.numel() == targets.numel() else ""


def _check_mean(task: Task, criterion: Criterion, module: nn.Module, batch: Batch) -> None:
    """Refuse a loss that is a sum over examples: every example twice would have twice the loss."""
    twice = [map_tree(lambda leaf: torch.cat([leaf, leaf]), tree) for tree in batch]
    with torch.no_grad():
        value = float(criterion(call_module(copy.deepcopy(module).eval(), twice[0]), twice[1]))
        single = float(criterion(call_module(copy.deepcopy(module).eval(), batch[0]), batch[1]))
    if abs(single) > 1e-6 and abs(value - 2 * single) < 1e-3 * abs(single):  # noqa: PLR2004
        raise BadInput(f"{task.where}loss() gives the sum over the examples; it takes their mean")


def _find_changing_buffers(task: Task, module: nn.Module, batch: Batch) -> list[str]:
    """Return the buffers that training changes, such as BatchNorm's running statistics."""
    before = {name: value.clone() for name, value in module.named_buffers()}
    if not before:
        return []
    probe = copy.deepcopy(module).train()
    try:
        with torch.no_grad():
            call_module(probe, batch[0])
    except Exception as error:
        raise BadInput(f"{task.where}model() failed in training ({describe_error(error)})") from error
    return [name for name, value in probe.named_buffers() if not torch.equal(value, before[name])]


def _needs_pairs(module: nn.Module, batch: Batch) -> bool:
    """Return whether a model cannot train on a batch of one example: BatchNorm over single numbers cannot."""
    if not any(isinstance(layer, BATCH_NORMS) for layer in module.modules()):
        return False
    try:
        with torch.no_grad():
            call_module(copy.deepcopy(module).train(), map_tree(lambda leaf: leaf[:1], batch[0]))
    except ValueError:
        return True
    return False


def _takes_channels_last(module: nn.Module, criterion: Criterion, batch: Batch) -> bool:
    """Return whether a model works with channels last: not if it calls `view` on a convolution's output."""
    probe = FlatModel(copy.deepcopy(module).train())
    try:
        criterion(probe.call(batch[0]), batch[1]).backward()
        probe.module.eval()
        probe.call(batch[0])
    except RuntimeError:
        return False
    return True


def _count_classes(task: Task, outputs: Any, targets: Tree, examples: Examples, criterion: Criterion) -> int | None:
    """Return the number of classes if every example has one; BadInput if a label is beyond them."""
    if not _scores_classes(outputs, targets):
        return None
    single = targets.dim() == 1
    classes = outputs.shape[1 if single else class_dimension(outputs, targets)]
    labels = examples.targets() if examples.in_memory is not None else targets
    ignored = _ignored_label(criterion, single=single)
    if (wrong := find_wrong_label(labels, classes, ignored)) is not None:
        if ignored is None and criterion is not functional.cross_entropy:
            return None  # a loss of the user's own may take them for something else
        none = "" if ignored is None else f" (or {ignored} for none)"
        raise BadInput(
            f"{task.where}data() gave a label of {wrong}, and model() scores {classes} classes; "
            f"it takes labels from 0 to {classes - 1}{none}"
        )
    return classes if single and find_wrong_label(labels, classes) is None else None


def takes_every_label(criterion: Criterion) -> bool:
    """Return whether a loss is the built-in one of one label an example, for which none counts for nothing."""
    return getattr(criterion, "func", criterion) is functional.cross_entropy


def refuse_ignored(targets: Tree) -> None:
    """Raise BadInput if one of the labels counts for nothing: torch's loss would leave it out without a word."""
    if isinstance(targets, torch.Tensor) and targets.dim() == 1 and bool((targets == IGNORED).any()):
        raise BadInput(f"data() gave a label of {IGNORED}; with one label an example it takes classes: leave it out")


def find_wrong_label(labels: torch.Tensor, classes: int, ignored: int | None = None) -> int | None:
    """Return a label that is not one of the classes, if there is one."""
    counted = labels if ignored is None else labels[labels != ignored]
    if not counted.numel():
        return None
    least, most = int(counted.min()), int(counted.max())
    return least if least < 0 else most if most >= classes else None


def _ignored_label(criterion: Criterion, *, single: bool) -> int | None:
    """Return the label that counts for nothing; None: there is none, or a loss of the user's own decides.

    For one label an example the built-in loss has none: an example that counts for nothing can be left out.
    """
    if isinstance(criterion, nn.CrossEntropyLoss | nn.NLLLoss):
        return criterion.ignore_index
    return IGNORED if criterion is sequence_cross_entropy and not single else None


def _choose_metrics(task: Task, criterion: Criterion, outputs: Any, targets: Tree) -> list[NamedMetric]:
    """Return the task's metrics; without any: what goes with the built-in loss, or the loss alone."""
    if task.metrics is not None:
        given = task.call("metrics")
        try:
            return collect_metrics(given, outputs, targets)
        except BadInput as error:
            raise BadInput(f"{task.where}{error}") from error
    defaults: dict[Any, list[str]] = {
        functional.cross_entropy: ["accuracy"],
        sequence_cross_entropy: ["accuracy", "perplexity"],
        mean_squared_error: ["rmse", "mae"],
    }
    names = defaults.get(criterion, [])
    if not names and _scores_classes(outputs, targets):
        names = ["accuracy"]
    return [BUILT_IN[name] for name in names] or [NamedMetric(LOSS, higher_is_better=False)]


def _scores_classes(outputs: Any, targets: Tree) -> bool:
    """Return whether targets are classes and outputs a score for each, whatever the loss is."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        return False
    if targets.dim() == 1:
        return outputs.dim() == 2 and outputs.shape[1] > 1  # noqa: PLR2004
    try:
        return class_dimension(outputs, targets) >= 0
    except BadInput:
        return False
