"""Ditto: FedAvg's global model w, and beside it a personal model v held near it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021. A client trains w
as in FedAvg and v on cross-entropy + μ/2‖v − w_received‖², both on the same batches; w is averaged, v never
leaves the client. The server's model is FedAvg's to the last bit: the two models share neither gradients nor
their clipping.

It does not know capacities: everybody trains the width that the weakest client affords. v starts as the
first w that a client receives (the algorithm leaves its start open). The tested model is v, or w on a client
that never took part. The authors test v as the last participation left it, which is `--tested received` here:
what a client receives does not change its v.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.randomness import key
from pa3dfl.core.tree import Tree, mean, put, take
from pa3dfl.methods.base import Batch, Method, Update, option
from pa3dfl.methods.task import Client, Task

W, V = "w/", "v/"


@dataclass(frozen=True)
class Ditto(Method):
    name = "ditto"
    summary = "FedAvg, and on each client a personal model held near the global one"

    mu: float = option(1.0, "μ, pull of the personal model towards the global one", at_least=0)

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        return [min(affordable)] * len(affordable)

    def init_server(self, task: Task) -> Tree:
        return task.model.init(task.clients[0].width, key(task.seed, "model"))

    def download(self, task: Task, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        return [server for _ in clients]

    def begin(self, task: Task, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return put(W, down) | put(V, private or down), down

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, noise: Tree) -> Tensor:
        x, y = batch
        w, v = take(W, theta), take(V, theta)
        global_loss = F.cross_entropy(task.model(w, x, width), y)
        personal_loss = F.cross_entropy(task.model(v, x, width), y)
        distance = sum((v[k] - fixed[k]).square().sum() for k in sorted(fixed))
        return global_loss + personal_loss + self.mu / 2 * distance

    def clip_groups(self, theta: Tree) -> list[list[str]]:
        return [[k for k in theta if k.startswith(prefix)] for prefix in (W, V)]

    def finish(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return take(W, theta), take(V, theta)

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        return mean([u.tree for u in updates], [u.n for u in updates])

    def weights(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        """The personal model."""
        return take(V, theta)

    def is_head(self, task: Task, name: str) -> bool:
        return name.startswith((W + task.model.head + ".", V + task.model.head + "."))
