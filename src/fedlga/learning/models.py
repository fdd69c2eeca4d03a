"""The models: MLP-400, a small CNN, ResNet-20 with GroupNorm, and a user's own as 'package.module:function'."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from fedlga.core.randomness import Stream, torch_seed
from fedlga.core.registry import find
from fedlga.core.settings import BadInput
from fedlga.learning.augment import resize_images

if TYPE_CHECKING:
    from fedlga.core.types import Vector

Shape = tuple[int, int, int]  # channels, height, width
Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def mlp(shape: Shape, classes: int) -> nn.Module:
    """The paper's model for Fashion-MNIST: one hidden layer of 400 units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 400), nn.ReLU(), nn.Linear(400, classes))


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions of 16 and 32 channels, each followed by pooling, and one hidden layer of 64 units."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


class Block(nn.Module):
    """Two 3 x 3 convolutions with GroupNorm, and a shortcut.

    If the size changes, the shortcut is a strided slice padded with zero channels, without parameters: option A of
    He et al. 2016, section 4.2.
    """

    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm_first = nn.GroupNorm(groups, outside)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm_second = nn.GroupNorm(groups, outside)
        self.stride, self.extra = stride, outside - inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        y = self.norm_second(self.second(torch.relu(self.norm_first(self.first(x)))))
        if self.extra:
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return torch.relu(x + y)


def resnet20(shape: Shape, classes: int) -> nn.Module:
    """ResNet-20 (16, 32, 64 channels) with GroupNorm of 2 groups, as Hsieh et al. 2020 use it on non-iid data."""
    groups = 2
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), nn.GroupNorm(groups, 16), nn.ReLU()]
    inside = 16
    for outside in (16, 32, 64):
        for index in range(3):
            layers.append(Block(inside, outside, 2 if index == 0 and outside > 16 else 1, groups))  # noqa: PLR2004
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class FlatModel:
    """A module whose trainable parameters are views of one vector, and their gradients of another.

    `criterion` turns its outputs and the labels into the loss. The kernels of 2-d convolutions are stored with channels
    last, so that torch computes in that layout: half the time of a step, a third of an evaluation.
    """

    def __init__(
        self, module: nn.Module, criterion: Criterion = functional.cross_entropy, *, channels_last: bool = True
    ) -> None:
        self.module = module
        self.criterion = criterion
        self.parameters = parameters = [p for p in module.parameters() if p.requires_grad]
        self.weights: list[torch.Tensor] = []  # the parameters, as pieces of `vector`
        self.gradients: list[torch.Tensor] = []  # the same pieces of `gradient`
        flatten, shape = (
            (_channels_last, _shape_piece) if channels_last else (torch.Tensor.contiguous, torch.Tensor.view_as)
        )
        self.vector: Vector = torch.cat([flatten(p.detach()).reshape(-1) for p in parameters])
        self.gradient: Vector = torch.zeros_like(self.vector)
        start = 0
        for p in parameters:
            end = start + p.numel()
            self.weights.append(shape(self.vector[start:end], p))
            self.gradients.append(shape(self.gradient[start:end], p))
            p.data, p.grad = self.weights[-1], self.gradients[-1]
            start = end

    @property
    def convolves(self) -> bool:
        """Whether it has convolutions: their outputs are much larger than the images."""
        return any(p.dim() == IMAGE for p in self.module.parameters())


IMAGE = 4  # dimensions of a batch of images, and of the kernels that take one


def _channels_last(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.permute(0, 2, 3, 1) if parameter.dim() == IMAGE else parameter


def _shape_piece(flat: Vector, like: torch.Tensor) -> torch.Tensor:
    """Return a piece of the vector as the parameter it holds."""
    if like.dim() != IMAGE:
        return flat.view_as(like)
    return flat.view(_channels_last(like).shape).permute(0, 3, 1, 2)


def make_model(name: str, shape: Shape, classes: int, seed: int) -> FlatModel:
    """Return a model with the starting weights of this seed: the same for every method."""
    make = find("model", name)
    return _check_and_flatten(repr(name), lambda: make(shape, classes), torch.zeros(2, *shape), classes, seed)


def make_own_model(
    make: Callable[[], object], images: torch.Tensor, labels: torch.Tensor, seed: int, resize: int = 0
) -> FlatModel:
    """Return the model of a user who brings data too, of any shape."""
    if len(images) != len(labels) or len(labels) == 0:
        raise BadInput(f"data: got {len(images)} examples and {len(labels)} labels; it takes as many, and one at least")
    if labels.dtype != torch.int64 or labels.dim() != 1 or int(labels.min()) < 0:
        kind = f"{labels.dtype} in {labels.dim()} dimensions"
        raise BadInput(f"data: got labels of {kind}; it takes torch.int64 in one, counted from 0")
    return _check_and_flatten(
        "model()", make, resize_images(images[[0, -1]], resize), int(labels.max()) + 1, seed, more=True
    )


def _check_and_flatten(
    name: str, make: Callable[[], object], images: torch.Tensor, classes: int, seed: int, *, more: bool = False
) -> FlatModel:
    """Return a model that takes these images, scores so many classes (`more`: or more), and can be averaged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, Stream.WEIGHTS))
        module = make()
        if not isinstance(module, nn.Module):
            raise BadInput(
                f"model: {name} gave a {type(module).__name__}; it takes a function that returns an nn.Module"
            )
        _check_parameters(name, module)
        _check_fit(name, module, images, classes, more=more)
        _check_buffers(name, module, images)
        channels_last = _takes_channels_last(module, images)
    return FlatModel(module.train(), channels_last=channels_last)


def _takes_channels_last(module: nn.Module, images: torch.Tensor) -> bool:
    """Return whether a model works with channels last: not if it calls `view` on a convolution's output."""
    probe = FlatModel(copy.deepcopy(module).train())
    try:
        probe.module(images).sum().backward()
    except RuntimeError:
        return False
    return True


def _check_parameters(name: str, module: nn.Module) -> None:
    trainable = [p for p in module.parameters() if p.requires_grad]
    if not trainable:
        raise BadInput(f"model: {name} has no trainable parameters")
    others = {str(p.dtype) for p in trainable if p.dtype != torch.float32}
    if others:
        raise BadInput(f"model: {name} has parameters of {', '.join(sorted(others))}; it takes torch.float32")


def _check_fit(name: str, module: nn.Module, images: torch.Tensor, classes: int, *, more: bool) -> None:
    """Check that one batch goes in, and one score a class comes out."""
    probe = copy.deepcopy(module).eval()
    try:
        with torch.no_grad():
            out = probe(images)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"model: {name} does not take images of shape {tuple(images.shape[1:])} ({reason})") from error
    count = len(images)
    got: object = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
    enough = isinstance(out, torch.Tensor) and more and out.shape[:-1] == (count,) and out.shape[-1] >= classes
    if got != (count, classes) and not enough:
        raise BadInput(f"model: {name} gives {got} for {count} images; it takes one score a class, {(count, classes)}")


def _check_buffers(name: str, module: nn.Module, images: torch.Tensor) -> None:
    """Refuse buffers that training changes, such as BatchNorm's: no method here averages them."""
    before = {key: value.clone() for key, value in module.named_buffers()}
    if not before:
        return
    probe = copy.deepcopy(module).train()
    with torch.no_grad():
        probe(torch.randn_like(images) if images.is_floating_point() else images)
    changed = [key for key, value in probe.named_buffers() if not torch.equal(value, before[key])]
    if changed:
        raise BadInput(
            f"model: {name} has buffers that training changes ({_list_some(changed)}); they cannot be averaged: "
            "use GroupNorm or LayerNorm in place of BatchNorm"
        )


def _list_some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
