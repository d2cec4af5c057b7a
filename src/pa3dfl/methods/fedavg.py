"""FedAvg: one model for all, averaged by the clients' data sizes.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
It does not know capacities: everybody trains the width that the weakest client affords. The global model is
tested as it is with `--tested received`, and fine-tuned by one local pass with `--tested adapted`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from pa3dfl.core.randomness import key
from pa3dfl.core.tree import Tree, mean
from pa3dfl.methods.base import Method, Update
from pa3dfl.methods.task import Client, Task


@dataclass(frozen=True)
class FedAvg(Method):
    name = "fedavg"
    summary = "one global model at the minimum width, weighted mean"

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        return [min(affordable)] * len(affordable)

    def init_server(self, task: Task) -> Tree:
        return task.model.init(task.clients[0].width, key(task.seed, "model"))

    def download(self, task: Task, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        return [server for _ in clients]

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        return mean([u.tree for u in updates], [u.n for u in updates])
