"""What the federation asks of an engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pa3dfl.methods import Method, Update
from pa3dfl.task import Client, Task
from pa3dfl.tree import Tree

Tick = Callable[[], None]
"""Called after each client, so that long work shows progress."""


@dataclass(frozen=True)
class Score:
    """One client's tested model: how it was chosen and how it did."""

    client: int
    val_accuracy: float
    val_loss: float
    test_accuracy: float
    alpha: float


class Engine(Protocol):
    name: str

    def train(
        self,
        method: Method,
        task: Task,
        server: Tree,
        private: Mapping[int, Tree],
        cohort: Sequence[Client],
        rnd: int,
        tick: Tick,
    ) -> list[Update]:
        """Local training of a cohort. Changes neither the server's nor any private state."""
        ...

    def evaluate(
        self,
        method: Method,
        task: Task,
        server: Tree,
        private: Mapping[int, Tree],
        clients: Sequence[Client],
        rnd: int,
        select: str,
        tick: Tick,
    ) -> list[Score]:
        """Every client's personal model, chosen on its validation data and tested on its test data."""
        ...
