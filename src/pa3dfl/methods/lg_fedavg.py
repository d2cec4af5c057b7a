"""LG-FedAvg: local representations below a global head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020.
Each client keeps the layers below the head at its own width; only the head is sent and averaged, by the
clients' data sizes. The last encoder layer keeps its full output at every width, so that one head fits all clients.

The authors start from a model trained by FedAvg, which clients of different widths cannot share. Here clients of equal
width start from the same random layers. `--tested received` tests the client's own layers, as its last participation
left them, below the current global head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from pa3dfl.core.tree import Tree, mean
from pa3dfl.methods.base import Method, Update
from pa3dfl.methods.common.heads import split_head
from pa3dfl.methods.common.slicing import cut, leading_places, merge
from pa3dfl.methods.problem import Client, Problem, Task


@dataclass(frozen=True)
class LGFedAvg(Method):
    name = "lg-fedavg"
    summary = "own layers at each client's width below one averaged head"
    full_features = True

    def init_server(self, task: Task) -> Tree:
        _, head = split_head(task.model, task.initial())
        return head

    def init_client(self, task: Task, client: Client) -> Tree:
        encoder, _ = split_head(task.model, task.initial(client.width))
        return encoder

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        return [
            server if whole(problem, c.width) else cut(server, leading_places(problem.model, c.width)) for c in clients
        ]

    def begin(self, problem: Problem, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return private | down, {}

    def finish(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        encoder, head = split_head(problem.model, theta)
        return head, encoder

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        trees, n = [u.tree for u in updates], [float(u.n) for u in updates]
        if all(whole(task, c.width) for c in task.clients):
            return mean(trees, n)
        return merge(server, trees, [leading_places(task.model, u.client.width) for u in updates], n)


def whole(problem: Problem, width: Fraction) -> bool:
    """Whether a client has the whole head: it has leading columns where the last layer cannot keep its full output."""
    head = f"{problem.model.head}.weight"
    return problem.model.shapes(width)[head] == problem.model.shapes(Fraction(1))[head]
