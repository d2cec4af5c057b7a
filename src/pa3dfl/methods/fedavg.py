"""FedAvg: one global model, averaged with weights proportional to the clients' data sizes.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
Download, local loss and weighted mean are the defaults of `Method`. FedAvg ignores capacities: all clients train the
width that the weakest client can afford. `--tested received` tests the global model as it is, `--tested adapted` after
one local pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from pa3dfl.core.tree import Tree
from pa3dfl.methods.base import Method
from pa3dfl.methods.common.widths import narrowest
from pa3dfl.methods.problem import Task


@dataclass(frozen=True)
class FedAvg(Method):
    name = "fedavg"
    summary = "one global model at the minimum width, weighted mean"

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        return narrowest(affordable)

    def init_server(self, task: Task) -> Tree:
        return task.initial(task.clients[0].width)
