"""LG-FedAvg: local representations below a global head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020.
Each client keeps the layers below the head at its own width; only the head is sent and averaged, by the
clients' data sizes. The last encoder layer keeps its full output at every width, so that one head fits all.

The authors start from a model trained by FedAvg, which clients of different widths cannot share: here clients
of one width start from the same fresh layers. `--tested received` tests the client's own layers, as its last
participation left them, under the current global head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from pa3dfl.core.rng import key
from pa3dfl.core.tree import Tree, mean
from pa3dfl.methods.base import Method, Update
from pa3dfl.methods.common.slicing import cut, leading_places, merge
from pa3dfl.methods.task import Client, Task


@dataclass(frozen=True)
class LGFedAvg(Method):
    name = "lg-fedavg"
    summary = "own layers at each client's width below one averaged head"
    full_features = True

    def init_server(self, task: Task) -> Tree:
        full = task.model.init(Fraction(1), key(task.seed, "model"))
        return {k: v for k, v in full.items() if self.is_head(task, k)}

    def init_client(self, task: Task, client: Client) -> Tree:
        fresh = task.model.init(client.width, key(task.seed, "model"))
        return {k: v for k, v in fresh.items() if not self.is_head(task, k)}

    def download(self, task: Task, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        places = [leading_places(task.model, c.width) for c in clients]
        return [server if alike(task) else cut(server, own) for own in places]

    def begin(self, task: Task, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return private | down, {}

    def finish(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        head = {k: v for k, v in theta.items() if self.is_head(task, k)}
        return head, {k: v for k, v in theta.items() if k not in head}

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        trees, n = [u.tree for u in updates], [float(u.n) for u in updates]
        if alike(task):
            return mean(trees, n)
        return merge(server, trees, [leading_places(task.model, u.client.width) for u in updates], n)


def alike(task: Task) -> bool:
    """Whether all heads are whole. Where the last layer cannot keep its full output, they are leading columns."""
    head = f"{task.model.head}.weight"
    return all(task.model.shapes(c.width)[head] == task.model.shapes(Fraction(1))[head] for c in task.clients)
