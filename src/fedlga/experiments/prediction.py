"""Using a trained model: from a run folder to a plain nn.Module, and to predictions for raw inputs.

inputs.json     what the inputs went through before the model saw them: scale, mean, deviation, size.

Without it, a model that was trained on normalised images would be silently worse on raw ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedlga.core.registry import find
from fedlga.core.settings import BadInput
from fedlga.core.tensors import load_tensors
from fedlga.experiments.config import IN_PYTHON, Experiment

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedlga.learning.splitting import Split
    from fedlga.learning.task import Task
    from fedlga.learning.trees import Tree

INPUTS, MODEL, TASK = "inputs.json", "model.safetensors", "task.py"
VERSION = 1
BATCH = 256  # inputs that are computed at a time
TAKES = "an array, a tensor or a frame, or a tuple or dict of them, as data() gives them"


@dataclass(frozen=True)
class Inputs:
    """What a model takes, and what is done to raw inputs before it. A task does that itself, in data()."""

    shape: tuple[int, ...] | None = None  # of a raw image: channels, height, width; None: those of a task
    classes: int | None = None  # None: the outputs are not scores of classes
    top: float = 1.0  # the value of a white pixel
    mean: tuple[float, ...] = (0.0,)  # of each channel, after division by `top`
    deviation: tuple[float, ...] = (1.0,)
    resize: int = 0
    version: int = VERSION

    def as_text(self) -> str:
        """Return it as inputs.json has it."""
        return json.dumps(asdict(self), indent=2) + "\n"


def describe_inputs(e: Experiment, split: Split | None) -> Inputs:
    """Return what the inputs of an experiment go through."""
    classes = None if split is None or split.held is None else int(split.held.shape[1])
    if e.task is not None or e.dataset == "own":
        return Inputs(classes=classes, resize=e.resize)
    dataset = find("dataset", e.dataset)
    shape = None if split is None else tuple(split.train.piece(0, 1)[0].shape[1:])
    plain = Inputs(shape, int(dataset.classes), float(dataset.top), resize=e.resize)
    if not e.normalise:
        return plain
    return replace(plain, mean=tuple(map(float, dataset.mean)), deviation=tuple(map(float, dataset.std)))


def read_inputs(folder: Path, e: Experiment, data_dir: str | Path | None = None) -> Inputs:
    """Return what the inputs of a run went through. Folders of earlier versions do not say: then its data does."""
    file = folder / INPUTS
    if not file.exists():
        return _find_inputs(e, data_dir)
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if values["version"] > VERSION:
            raise BadInput(f"{str(file)!r} is of a later version of fedlga ({values['version']})")
        mean, deviation = (tuple(float(value) for value in values[name]) for name in ("mean", "deviation"))
        shape = None if values["shape"] is None else tuple(int(side) for side in values["shape"])
        classes = None if values["classes"] is None else int(values["classes"])
        return Inputs(shape, classes, float(values["top"]), mean, deviation, int(values["resize"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{str(file)!r} cannot be read ({error}); the file is left as it is") from error


def _find_inputs(e: Experiment, data_dir: str | Path | None) -> Inputs:
    from fedlga.experiments.simulation import fit_experiment, load_data, split_data

    if e.task is not None:
        return describe_inputs(e, None)
    data = load_data(e, data_dir)
    fitted, problem = fit_experiment(e, data)
    return describe_inputs(fitted, split_data(fitted, data, problem))


def load_model(folder: Path, e: Experiment, inputs: Inputs, task: Task | None = None) -> nn.Module:
    """Return the model of a run with its trained weights, in evaluation mode, on the CPU."""
    import torch

    if not (folder / MODEL).is_file():
        raise BadInput(f"{str(folder)!r} holds no {MODEL}; it is written when a run ends or is stopped")
    if e.task is not None or task is not None:
        module = (task or _find_task(folder, e)).call("model")
    elif inputs.shape is None:
        raise BadInput(f"{str(folder)!r} does not say what its model takes: it ran on devices with their own data")
    else:
        channels, height, width = inputs.shape
        side = (inputs.resize,) * 2 if inputs.resize else (height, width)
        module = find("model", e.model)((channels, *side), inputs.classes)
    try:
        module.load_state_dict(load_tensors(folder / MODEL)[0])
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise BadInput(f"{str(folder / MODEL)!r} does not fit the model ({reason})") from error
    return cast("nn.Module", module.to(torch.device("cpu")).eval())


def _find_task(folder: Path, e: Experiment) -> Task:
    """Return the task of a run: its file where it was if that is still the same, else the run's copy of it."""
    from fedlga.learning.task import load_task

    assert e.task is not None
    if e.task.startswith(IN_PYTHON):
        name = e.task.removeprefix(IN_PYTHON)
        raise BadInput(f"task: {name!r} was made in Python; it takes task=..., the same task")
    copy, original = folder / TASK, Path(e.task)
    if copy.is_file() and not (original.is_file() and original.read_bytes() == copy.read_bytes()):
        return load_task(str(copy.resolve()))
    return load_task(e.task)


def prepare_images(raw: Any, inputs: Inputs) -> Tensor:
    """Return raw images as the model takes them: scaled, normalised, resized; one image becomes a batch of one."""
    import torch

    from fedlga.learning.augment import resize_images
    from fedlga.learning.trees import describe_tree

    assert inputs.shape is not None
    channels, height, width = inputs.shape
    takes = f"it takes images of {channels} x {height} x {width}, one or many"
    try:
        images = torch.as_tensor(raw)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"inputs: got {describe_tree(raw)}; {takes}") from error
    if tuple(images.shape) in ((height, width), inputs.shape):
        images = images.reshape(1, channels, height, width)
    elif channels == 1 and tuple(images.shape[1:]) == (height, width):
        images = images.reshape(-1, 1, height, width)
    if images.dim() != 4 or tuple(images.shape[1:]) != inputs.shape:  # noqa: PLR2004
        raise BadInput(f"inputs: got {' x '.join(map(str, images.shape))}; {takes}")
    if images.is_floating_point() and images.numel() and inputs.top > 1 and float(images.max()) <= 1:
        raise BadInput(f"inputs: got pixels of at most 1; it takes them as published, from 0 to {inputs.top:g}")
    mean = torch.tensor(inputs.mean).reshape(1, -1, 1, 1)
    deviation = torch.tensor(inputs.deviation).reshape(1, -1, 1, 1)
    images = images.to(torch.float32).div(inputs.top).sub(mean).div(deviation)
    return resize_images(images, inputs.resize) if inputs.resize else images


def prepare_tree(raw: Any) -> Tree:
    """Return the inputs of a task as tensors: an array, tensor, frame or list of rows, or a tuple or dict of them."""
    from fedlga.learning.reading import read_tree
    from fedlga.learning.trees import describe_tree, leaves_of, name_type

    if raw is None or isinstance(raw, str | bytes | set):
        raise BadInput(f"inputs: got {name_type(raw)}; it takes {TAKES}")
    prepared = read_tree("inputs", "it", _read_frame(raw))
    if len({len(leaf) for leaf in leaves_of(prepared)}) > 1:
        raise BadInput(f"inputs: got {describe_tree(prepared)}; it takes as many rows in each")
    return prepared


def _read_frame(leaf: Any) -> Any:
    """Return a frame as an array, float32 as data() makes it; anything else as it is."""
    import numpy as np

    if not hasattr(leaf, "to_numpy"):
        return leaf
    try:
        return leaf.to_numpy(dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise BadInput(f"inputs: the frame does not hold numbers ({error}); it takes columns of numbers") from error


def compute_outputs(module: nn.Module, raw: Any, inputs: Inputs) -> Any:
    """Return a model's outputs for raw inputs, batch by batch: a tensor, or a tree of tensors if it gives one."""
    import torch

    from fedlga.learning.flat_model import call_module
    from fedlga.learning.task import describe_error
    from fedlga.learning.trees import describe_tree, join_trees, leaves_of, map_tree

    prepared = prepare_tree(raw) if inputs.shape is None else prepare_images(raw, inputs)
    count = len(next(leaves_of(prepared)))
    if not count:
        raise BadInput("inputs: got none; it takes at least one")
    with torch.no_grad():
        rows = [slice(start, start + BATCH) for start in range(0, count, BATCH)]
        try:
            return join_trees([call_module(module, map_tree(itemgetter(some), prepared)) for some in rows])
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            got = describe_tree(prepared)
            raise BadInput(f"inputs: got {got}, which the model does not take ({describe_error(error)})") from error
