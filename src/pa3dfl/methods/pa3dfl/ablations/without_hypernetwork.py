"""Pa3dFL without its hyper-network (paper, table `tb_ablation`, "w.o. HN-based Agg."): nothing personal is shared.

θ_v and the local head stay on their client; general parameters, biases and norms are averaged as in Pa3dFL. All
clients start from the same θ_v. In Pa3dFL they start from almost the same, because their embeddings differ little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from pa3dfl.core.randomness import generator
from pa3dfl.core.tree import Tree, leading, put
from pa3dfl.methods.base import Update
from pa3dfl.methods.pa3dfl import general
from pa3dfl.methods.pa3dfl.method import HEAD, Pa3dFL, V, head_at, hypernetwork, layout
from pa3dfl.methods.problem import Client, Problem, Task


@dataclass(frozen=True)
class WithoutHyperNetwork(Pa3dFL):
    name = "pa3dfl-without-hn"
    summary = "ablation: Pa3dFL whose personal parameters stay on their client"

    def init_server(self, task: Task) -> Tree:
        return self.init_general(task)

    def init_client(self, task: Task, client: Client) -> Tree:
        outputs, tree = hypernetwork(self, task).outputs, {}
        for k, shape in layout(self, task).personal_shapes(client.width, HEAD).items():
            g = generator(task.seed, f"theta_v:{k}")
            full = torch.empty(outputs[k].shape).normal_(0, outputs[k].std, generator=g)
            tree[k] = leading(full, shape).clone()
        return put(V, tree)

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        return [general.part(problem.model, server, c.width) for c in clients]

    def begin(self, problem: Problem, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        # Sorted: a tree from a checkpoint may have another order.
        return down | {k: private[k] for k in sorted(private) if k.startswith(V)}, head_at(self, problem, client.width)

    def finish(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        own = {k: v for k, v in theta.items() if k.startswith(V)}
        return {k: v for k, v in theta.items() if k not in own}, own | super().finish(problem, width, theta, fixed)[1]

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        return self.average(task, server, updates)

    def welcome(self, task: Task, server: Tree, client: Client, update: Update | None) -> Tree:
        return {}
