"""LocalOnly: every client trains alone, at its own width, without any communication.

A client trains when it is sampled, and so gets on average the R·E·m/N epochs that a federation of R rounds would give
it. Its best evaluation by its own validation data counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from pa3dfl.core.tree import Tree
from pa3dfl.methods.base import Method, Update
from pa3dfl.methods.problem import Client, Problem, Task


@dataclass(frozen=True)
class LocalOnly(Method):
    name = "local-only"
    summary = "every client trains alone at its own width"
    best_round_per_client = True

    def init_server(self, task: Task) -> Tree:
        return {}

    def init_client(self, task: Task, client: Client) -> Tree:
        return task.initial(client.width, client.id)

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        return [{} for _ in clients]

    def begin(self, problem: Problem, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return private, {}

    def finish(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return {}, theta

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        return server
