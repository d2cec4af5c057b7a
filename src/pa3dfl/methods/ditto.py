"""Ditto: FedAvg's global model w, and beside it a personal model v close to it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021. A client trains w
as in FedAvg and v on cross-entropy + μ/2‖v − w_received‖², both on the same batches; w is averaged, v never
leaves the client. The two models share neither gradients nor clipping, so that w equals FedAvg's model bit for bit.

Ditto ignores capacities: all clients train the width that the weakest client can afford. v starts as the first w that
a client receives (the paper does not define its start). The tested model is v, or w on a client that never took part.
The authors test v as the last participation left it, which is `--tested received` here: the download does not change v.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.tree import Tree, put, take
from pa3dfl.methods.base import Batch, Method, option
from pa3dfl.methods.common.widths import narrowest
from pa3dfl.methods.problem import Client, Problem, Task

W, V = "w/", "v/"


@dataclass(frozen=True)
class Ditto(Method):
    name = "ditto"
    summary = "FedAvg, and on each client a personal model close to the global one"

    mu: float = option(1.0, "μ, pull of the personal model towards the global one", at_least=0)

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        return narrowest(affordable)

    def init_server(self, task: Task) -> Tree:
        return task.initial(task.clients[0].width)

    def begin(self, problem: Problem, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return put(W, down) | put(V, private or down), down

    def loss(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, draws: Tree) -> Tensor:
        x, y = batch
        w, v = take(W, theta), take(V, theta)
        global_loss = F.cross_entropy(problem.model(w, x, width), y)
        personal_loss = F.cross_entropy(problem.model(v, x, width), y)
        distance = sum((v[k] - fixed[k]).square().sum() for k in sorted(fixed))
        return global_loss + personal_loss + self.mu / 2 * distance

    def clip_groups(self, theta: Tree) -> list[list[str]]:
        return [[k for k in theta if k.startswith(prefix)] for prefix in (W, V)]

    def finish(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return take(W, theta), take(V, theta)

    def weights(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        """The personal model."""
        return take(V, theta)
