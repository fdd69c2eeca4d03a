"""FedLGA: Li, Qu, Tang, Lu, FedLGA: Towards System-Heterogeneity of Federated Learning via Local Gradient
Approximation, IEEE Transactions on Cybernetics 2023. Algorithms 1 and 2.

| paper | here |
|---|---|
| Delta_{i,E_i} = w_{i,E_i} - w (Algorithm 1's sign) | update.delta |
| E - E_i + 1 = tau_i | from update.steps and update.steps_asked; tau_i = 1 is update.finished |
| K_1, K_2 | the stragglers, the complete devices of the round |
| w_hat_{i,E} - w | mean delta of K_2: `expected` |
| g in G = g g^T (Eq. 6) | -delta / (lr * steps): all that (delta, tau) tells of the gradient |
| Eq. 5 | completed delta = delta + g (g . d), d = w_hat - w_i: no matrix is ever made |
| Eq. 7 | FedLGA.aggregate |

With that g, which is parallel to delta, Eq. 5 with Eq. 6 multiplies delta by one number, 1 + (g . d) / (-lr * steps).
Printed as it stands its units do not match and it diverges. So completing an update means choosing its scale:

- `printed`: Eq. 5 and 6 to the letter, for whoever wants to check us;
- `growth` and `trusted` (the default): what the updates themselves tell, see completion.py;
- `linear`: all the work over the work done, plain extrapolation;
- a number: every straggler's update times that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import torch

from ..settings import setting
from ..types import Server, Update
from .base import Method, mean_delta

if TYPE_CHECKING:
    from ..types import Vector


@final
@dataclass(frozen=True)
class FedLGA(Method):
    """Averaging of completed updates: the policy `complete` is the method."""

    eta_g: float = setting(1.0, "global learning rate: multiplies the averaged update", above=0)

    policies = ("complete",)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:  # noqa: D102
        return replace(server, w=mean_delta(updates).mul_(self.eta_g).add_(server.w))


def printed_scale(update: Update, expected: Vector) -> float:
    """Eq. 5 and 6 to the letter: 1 + (g . d) / (-lr * steps), with d = w_hat - w_i = expected - delta."""
    path = -update.lr * update.steps
    delta = update.delta
    g_dot_d = float(torch.dot(delta, expected) - torch.dot(delta, delta)) / path
    return 1 + g_dot_d / path
