"""What a method is: pure functions over trees. The engine owns the loop.

One round: the server's state → `download` → on each client `begin`, then steps of SGD on `loss`, then
`finish` → `aggregate`. One evaluation: `download` and `begin`, by the rule `adapted` steps of SGD too, then
`personal` proposes models and validation data picks the one that is tested. Nothing is remembered in between, so that
an engine may stack clients, capture the step or send it over a wire.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.methods.task import Client, Task

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Score:
    """One client's tested model: by which rule it was made, how it was chosen and how it did."""

    client: int
    rule: str
    val_accuracy: float
    val_loss: float
    test_accuracy: float
    alpha: float


@dataclass
class Update:
    """What a client sends back, and what it keeps (`private`, which never leaves it)."""

    client: Client
    tree: Tree
    n: int
    private: Tree
    loss: float
    bytes_down: int
    refused: str | None = None
    """Why the engine could not take what the client sent; then the tree is empty."""
    score: Score | None = None
    """How the model that training left on the client does on its own data, where that was asked for."""


def option(
    default: Any, help: str, at_least: float | None = None, above: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """A hyper-parameter: the line that `--help` shows, and which values make sense."""
    metadata = {"help": help, "at_least": at_least, "above": above, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Method(ABC):
    """Fields of a subclass are its hyper-parameters."""

    name: ClassVar[str]
    summary: ClassVar[str]
    full_features: ClassVar[bool] = False
    """The last encoder layer keeps its full output at every width, so that all heads have one size."""
    best_round_per_client: ClassVar[bool] = False
    """Each client's best evaluation counts, not the federation's: for methods that share nothing."""

    capturable: ClassVar[bool] = True
    """For equal draws a step does the same operations on the same shapes: an engine may record and replay it."""

    charged_order: ClassVar[str] = ""
    """Of a method with an option `order`: the one by which the paper's efficiency table counts the encoder."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value, m = getattr(self, f.name), f.metadata
            if m["choices"] and value not in m["choices"]:
                raise UserError(f"{f.name} is {value!r}: expected one of {', '.join(m['choices'])}")
            if m["at_least"] is not None and not m["at_least"] <= value < math.inf:
                raise UserError(f"{f.name} is {value}: expected a number of at least {m['at_least']:g}")
            if m["above"] is not None and not m["above"] < value < math.inf:
                raise UserError(f"{f.name} is {value}: expected a number above {m['above']:g}")

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        """The width of each client, given the widths that they could afford."""
        return list(affordable)

    @abstractmethod
    def init_server(self, task: Task) -> Tree:
        """The server's state before round 1."""

    def extend(self, task: Task, server: Tree) -> Tree:
        """The server's state with all that it needs for clients who joined after `init_server`, maybe at new widths."""
        return server

    def init_client(self, task: Task, client: Client) -> Tree:
        """A client's private state before its first round."""
        return {}

    @abstractmethod
    def download(self, task: Task, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        """What each of the clients is sent."""

    def begin(self, task: Task, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        """(trainable, fixed) at the start of local training."""
        return down, {}

    def draw(self, task: Task, width: Fraction, generator: torch.Generator) -> Tree:
        """The randomness of one step, made outside the loss: whole numbers on the CPU, which may decide shapes."""
        return {}

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, noise: Tree) -> Tensor:
        """The local objective on a batch. Sees a width, never a client."""
        x, y = batch
        return F.cross_entropy(task.model(self.weights(task, width, theta, fixed), x, width), y)

    def step_scale(self, name: str) -> float:
        """Factor on the step size of an entry of theta."""
        return 1.0

    def clip_groups(self, theta: Tree) -> list[list[str]]:
        """Names of theta whose gradients are clipped by one norm; several groups keep models independent."""
        return [list(theta)]

    def finish(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        """(upload, private) after local training."""
        return theta, {}

    @abstractmethod
    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        """The server's next state. Owns its arguments and may update them in place; updates are sorted by client."""

    def history(self, task: Task, server: Tree, clients: Sequence[int]) -> Tree:
        """What is kept of the server's state at an evaluation, for people to look at: see `pa3dfl.runs.history`."""
        return {}

    def weights(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        """The plain parameters of the model that `theta` stands for."""
        return theta

    def encoder_forward(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, x: Tensor) -> Tensor:
        """A batch through the encoder, in the way whose multiply-adds `cost` is to count."""
        return task.model.features(self.weights(task, width, theta, fixed), x, width)

    def is_head(self, task: Task, name: str) -> bool:
        """Whether an entry of theta belongs to a head: the paper's costs are those of the encoder."""
        return name.startswith(task.model.head + ".")

    def personal(self, task: Task, width: Fraction, received: Tree, trained: Tree, fixed: Tree) -> dict[float, Tree]:
        """Candidates for the tested model by their mixing weight α; validation data picks one."""
        return {1.0: self.weights(task, width, trained, fixed)}

    def predict(self, task: Task, width: Fraction, candidate: Tree, x: Tensor) -> Tensor:
        """Logits of a candidate."""
        return task.model(candidate, x, width)
