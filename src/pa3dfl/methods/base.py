"""The interface of a federated learning method: pure functions over trees of tensors. The engine runs the loop.

In a round, `download` makes from the server's state what each client receives. On each client `begin` makes the
trainable and the fixed tree, steps of SGD minimise `loss`, and `finish` makes the upload. `aggregate` makes the
server's next state from all uploads. An evaluation calls `download` and `begin`; by the rule `adapted` it then trains
as in a round. `personal` proposes models, and validation data picks the one that is tested.

A method keeps no state between calls, so that an engine may run clients in parallel, replay a recorded step, or send
trees over a network.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.options.schema import check
from pa3dfl.core.options.schema import option as option
from pa3dfl.core.tree import Tree, mean
from pa3dfl.methods.problem import Client, Problem, Task

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Score:
    """The test of one client's model: the rule that made it, and its results on validation and test data."""

    client: int
    rule: str
    val_accuracy: float
    val_loss: float
    test_accuracy: float
    alpha: float


@dataclass
class Update:
    """A client's upload (`tree`), and the private state that stays on the client."""

    client: Client
    tree: Tree
    n: int
    private: Tree
    loss: float
    bytes_down: int
    refused: str | None = None
    """Why the engine refused the upload, if it did; the tree is then empty."""
    score: Score | None = None
    """The test of the locally trained model on the client's own data, if the round asked for it."""
    model: Tree | None = None
    """That model, if the round asked for it."""


@dataclass(frozen=True)
class Method(ABC):
    """A federated learning method. The fields of a subclass are its hyper-parameters; the defaults are FedAvg's."""

    name: ClassVar[str]
    summary: ClassVar[str]
    full_features: ClassVar[bool] = False
    """The last encoder layer keeps its full output at every width, so that all heads have the same size."""
    best_round_per_client: ClassVar[bool] = False
    """Report each client's best evaluation instead of the federation's: for methods that share nothing."""
    capturable: ClassVar[bool] = True
    """Steps with equal draws run the same operations on the same shapes; an engine may record and replay them."""

    def __post_init__(self) -> None:
        check(self)

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        """The width of each client, given the widths that the clients can afford."""
        return list(affordable)

    @abstractmethod
    def init_server(self, task: Task) -> Tree:
        """The server's state before round 1."""

    def extend(self, task: Task, server: Tree) -> Tree:
        """The server's state, completed for clients who joined after `init_server`, possibly with new widths."""
        return server

    def init_client(self, task: Task, client: Client) -> Tree:
        """A client's private state before its first round."""
        return {}

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        """The tree that each of the clients receives: by default the server's state."""
        return [server] * len(clients)

    def begin(self, problem: Problem, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        """(trainable, fixed) at the start of local training."""
        return down, {}

    def draw(self, problem: Problem, width: Fraction, generator: torch.Generator) -> Tree:
        """The random numbers of one step: integers on the CPU. They may decide shapes."""
        return {}

    def loss(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, draws: Tree) -> Tensor:
        """The local objective on a batch. It depends on the client's width, and on nothing else about the client."""
        x, y = batch
        return F.cross_entropy(problem.model(self.weights(problem, width, theta, fixed), x, width), y)

    def step_scale(self, name: str) -> float:
        """Factor on the step size of an entry of theta."""
        return 1.0

    def clip_groups(self, theta: Tree) -> list[list[str]]:
        """Names of theta in groups. Each group's gradients are clipped by their common norm."""
        return [list(theta)]

    def finish(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        """(upload, private) after local training."""
        return theta, {}

    def untrained(self, problem: Problem, start: Tree, private: Tree) -> Tree:
        """The tree that replaces the trained one in a test without training: by default the start of training."""
        return start

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        """The server's next state: by default the mean of the uploads, weighted by numbers of training rows.

        May update its arguments in place. The updates are sorted by client.
        """
        return mean([u.tree for u in updates], [u.n for u in updates])

    def welcome(self, task: Task, server: Tree, client: Client, update: Update | None) -> Tree:
        """What the server stores about a client that joins after training: entries that complete its state for it.

        All other entries stay unchanged. Called when the client arrives, without an update, and after each of its
        rounds; `server` then holds the entries of the call before. By default nothing is stored: the client receives
        the current model and adapts it.
        """
        return {}

    def history(self, task: Task, server: Tree, clients: Sequence[int]) -> Tree:
        """Parts of the server's state that a run stores at each evaluation, for pictures: see `pa3dfl.runs.history`."""
        return {}

    def weights(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        """The parameters of the plain model that `theta` represents."""
        return theta

    def personal(
        self, problem: Problem, width: Fraction, received: Tree, trained: Tree, fixed: Tree
    ) -> dict[float, Tree]:
        """Candidates for the tested model, by their mixing weight α; validation data picks one."""
        return {1.0: self.weights(problem, width, trained, fixed)}

    def predict(self, problem: Problem, width: Fraction, candidate: Tree, x: Tensor) -> Tensor:
        """Logits of a candidate."""
        return problem.model(candidate, x, width)
