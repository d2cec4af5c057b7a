"""The interface between the federation and engines."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from pa3dfl.core.tree import Tree, on_meta
from pa3dfl.engines.guard import Rejected
from pa3dfl.methods import Method, Score, Update
from pa3dfl.methods.problem import Client, Task

Tick = Callable[[], None]
"""Called when a client is done, to show progress."""


@dataclass(frozen=True)
class Round:
    """The input of local work: the clients, the round, and the states of server and clients."""

    method: Method
    task: Task
    server: Tree
    private: Mapping[int, Tree]
    clients: Sequence[Client]
    number: int
    select: str = "accuracy"
    """The validation measure that picks a client's model."""
    scored: Collection[int] = ()
    """Ids of the clients whose trained models are tested right after training, for an evaluation."""
    shapes: dict[Fraction, Tree] = field(default_factory=dict)
    """For each width, the shapes of what a client is sent; filled by `download`."""
    sent: dict[int, Tree] | None = None
    """For each client, what it is sent; filled by `download`. None: do not keep it."""
    keeps: bool = False
    """Whether the updates of scored clients include the tested models."""

    def download(self, clients: Sequence[Client]) -> list[Tree]:
        """The trees that these clients are sent. Engines call this once per client, and never `Method.download`."""
        downs = self.method.download(self.task, self.server, clients, self.number)
        for client, down in zip(clients, downs, strict=True):
            if client.width not in self.shapes:
                self.shapes[client.width] = on_meta(down)
            if self.sent is not None:
                self.sent[client.id] = down
        return downs


def silent() -> None:
    """A tick that does nothing."""


class Engine(ABC):
    name: str
    may_lose_clients = False
    """Whether clients may fail to answer, because they are other processes or machines."""

    @abstractmethod
    def train(self, work: Round, tick: Tick = silent) -> list[Update]:
        """Train a cohort and return an update of each client that answered. Changes no state of server or clients.

        An accepted update's `private` is passed to later rounds: the client's private state, or a reference by which
        the engine finds it on another machine.
        """

    @abstractmethod
    def evaluate(self, work: Round, rules: Sequence[str], tick: Tick = silent) -> list[Score]:
        """Test the clients by each of the rules: `received`, and `adapted`, which trains first.

        Validation data chooses a client's model, test data scores it. Clients that do not answer have no score.
        """

    def remake(self, work: Round, rule: str, ids: Collection[int]) -> Iterator[tuple[Score, Tree]]:
        """Make again the models that `evaluate` tests by a rule, for some of the clients."""
        raise NotImplementedError(f"engine {self.name!r} cannot read its clients' states: they are on other machines")

    def tell(self, rejected: Sequence[Rejected], best: Mapping[int, int]) -> None:  # noqa: B027
        """Receive the rejected updates of the last round and the round of each client's best evaluation so far."""

    def close(self) -> None:  # noqa: B027
        """Free the engine's resources, such as processes and connections."""
