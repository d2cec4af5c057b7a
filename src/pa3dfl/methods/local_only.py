"""LocalOnly: every client trains alone, at its own width, without any communication.

A client trains when it is sampled. In R rounds of m among N clients it trains R·E·m/N epochs on average, as in a
federation. The evaluation counts that is best on the client's own validation data.
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
