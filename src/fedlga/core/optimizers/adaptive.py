"""FedAdagrad, FedAdam, FedYogi: Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2.

| paper | here |
|---|---|
| Delta_t | the method's direction |
| m_t = beta_1 m_{t-1} + (1 - beta_1) Delta_t, m_{-1} = 0 | memory["optimizer.mean"] |
| v_t, v_{-1} = tau^2 | memory["optimizer.square"] |
| x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau) | w; eta is eta_g |

There is no bias correction, as in the paper.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

from fedlga.core.method import recall
from fedlga.core.optimizers.base import ServerOptimizer, add_terms
from fedlga.core.settings import setting

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector

MEAN, SQUARE = "optimizer.mean", "optimizer.square"


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """A step size for each parameter; subclasses differ in v_t."""

    eta_g: float = setting(0.01, "global learning rate: a parameter moves about this much a round", above=0)
    beta_1: float = setting(0.9, "what is left of the mean direction after a round", least=0, below=1)
    tau: float = setting(0.001, "adaptivity: added to the root of v; smaller is more adaptive", above=0)

    @property
    def carry(self) -> float:  # noqa: D102
        return self.beta_1

    @abstractmethod
    def next_square(self, square: Vector, new: Vector) -> Vector:
        """Return v_t from v_{t-1} and the squared direction."""

    def step(self, w: Vector, terms: Sequence[Vector], memory: Memory) -> tuple[Vector, Memory]:  # noqa: D102
        direction = add_terms(terms)
        mean = (recall(memory, MEAN, w) * self.beta_1).add_(direction, alpha=1 - self.beta_1)
        square = memory[SQUARE] if SQUARE in memory else torch.full_like(w, self.tau**2)
        square = self.next_square(square, direction.square_())
        return w.addcdiv(mean, square.sqrt().add_(self.tau), value=self.eta_g), {MEAN: mean, SQUARE: square}


@final
@dataclass(frozen=True)
class Adagrad(Adaptive):
    """v_t = v_{t-1} + Delta_t^2. The paper sets beta_1 = 0."""

    beta_1: float = setting(0.0, "what is left of the mean direction after a round", least=0, below=1)

    def next_square(self, square: Vector, new: Vector) -> Vector:  # noqa: D102
        return square + new


@final
@dataclass(frozen=True)
class Adam(Adaptive):
    """v_t = beta_2 v_{t-1} + (1 - beta_2) Delta_t^2."""

    beta_2: float = setting(0.99, "what is left of the squared direction after a round", least=0, below=1)

    def next_square(self, square: Vector, new: Vector) -> Vector:  # noqa: D102
        return (square * self.beta_2).add_(new, alpha=1 - self.beta_2)


@final
@dataclass(frozen=True)
class Yogi(Adaptive):
    """v_t = v_{t-1} - (1 - beta_2) Delta_t^2 sign(v_{t-1} - Delta_t^2)."""

    beta_2: float = setting(0.99, "how slowly v follows the squared direction", least=0, below=1)

    def next_square(self, square: Vector, new: Vector) -> Vector:  # noqa: D102
        return square.addcmul(new, (square - new).sign(), value=-(1 - self.beta_2))
