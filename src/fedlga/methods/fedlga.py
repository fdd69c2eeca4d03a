"""FedLGA: Li, Qu, Tang, Lu, FedLGA: Towards System-Heterogeneity of Federated Learning via Local Gradient
Approximation, IEEE Transactions on Cybernetics 2023. Algorithms 1 and 2.

| paper | here |
|---|---|
| Delta_{i,E_i} = w_{i,E_i} - w (Algorithm 1's sign) | update.delta |
| E - E_i + 1 = tau_i | from update.steps and update.steps_asked; tau_i = 1 is update.finished |
| K_1, K_2 | the stragglers, the complete devices of the round |
| w_hat_{i,E} - w | mean delta of K_2: `expected` |
| g in G = g g^T (Eq. 6) | -delta / (lr * steps): all that delta and tau say about the gradient |
| Eq. 5 | completed delta = delta + g (g . d), d = w_hat - w_i: no matrix is ever made |
| Eq. 7 | FedLGA.direction |

With that g, which is parallel to delta, Eq. 5 with Eq. 6 multiplies delta by one number, 1 + (g . d) / (-lr * steps).
Printed as it stands its units do not match and it diverges. So completing an update means choosing its scale:

- `printed`: Eq. 5 and 6 as printed;
- `feedback` (the default) and `growth`: learned from the updates, see core/completion/;
- `linear`: all the work over the work done, plain extrapolation;
- a number: every straggler's update times that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from fedlga.core.method import Direction, Method, WeightedSum
from fedlga.core.types import Contribution, ServerState


@final
@dataclass(frozen=True)
class FedLGA(Method):
    """Averaging of completed updates: the policy `complete` is the method."""

    default_policy = "complete"
    policies = ("complete",)

    def direction(  # noqa: D102
        self, state: ServerState, sums: Mapping[str, WeightedSum], contributions: Sequence[Contribution]
    ) -> Direction:
        return Direction([sums["delta"].mean()])
