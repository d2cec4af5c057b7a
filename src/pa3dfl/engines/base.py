"""What the federation asks of an engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from pa3dfl.core.tree import Tree, on_meta
from pa3dfl.engines.guard import Rejected
from pa3dfl.methods import Method, Score, Update
from pa3dfl.methods.problem import Client, Task

Tick = Callable[[], None]
"""Called after each client, so that long work shows progress."""


@dataclass(frozen=True)
class Round:
    """What local work depends on: who works, in which round, from which state of the server and of their own."""

    method: Method
    task: Task
    server: Tree
    private: Mapping[int, Tree]
    clients: Sequence[Client]
    number: int
    select: str = "accuracy"
    """The validation measure that picks a client's model."""
    scored: Collection[int] = ()
    """Ids of the clients whose models are tested as training leaves them: an evaluation asks for these scores."""
    shapes: dict[Fraction, Tree] = field(default_factory=dict)
    """What a client of each width is sent, without contents; filled by `download`."""
    sent: dict[int, Tree] | None = None
    """What each client is sent, filled by `download`; None: contents are not kept."""

    def download(self, clients: Sequence[Client]) -> list[Tree]:
        """What each of these clients is sent. Engines ask for it here, and once for each client."""
        downs = self.method.download(self.task, self.server, clients, self.number)
        for client, down in zip(clients, downs, strict=True):
            if client.width not in self.shapes:
                self.shapes[client.width] = on_meta(down)
            if self.sent is not None:
                self.sent[client.id] = down
        return downs


def silent() -> None:
    """A tick that nobody hears."""


class Engine(ABC):
    name: str
    may_lose_clients = False
    """Whether a client may not answer: where clients are other processes or machines."""

    @abstractmethod
    def train(self, work: Round, tick: Tick = silent) -> list[Update]:
        """Local training of a cohort: an update of everybody who answered. Changes no state of server or clients.

        What an update has in `private` comes back in `private` once the update was accepted: it is the state
        itself, or what the engine needs to find it again where clients are other machines.
        """

    @abstractmethod
    def evaluate(self, work: Round, rules: Sequence[str], tick: Tick = silent) -> list[Score]:
        """Test all who answered by each of the rules: `received`, and `adapted`, which trains first.

        Validation data chooses a client's model, test data scores it.
        """

    def tell(self, rejected: Sequence[Rejected], best_round: int) -> None:  # noqa: B027
        """What became of the last updates, and which test was best so far, for engines that have somebody to tell."""

    def close(self) -> None:  # noqa: B027
        """Give back what the engine holds: processes, connections."""
