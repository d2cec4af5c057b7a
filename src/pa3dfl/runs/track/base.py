"""The interface of a tracker: what it receives from a run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]
PROJECT = "pa3dfl"


@dataclass(frozen=True)
class Start:
    path: Path
    """The run's directory."""
    name: str
    config: Mapping[str, Any]
    id: str | None
    """The id of the tracked run to continue; None for a new one."""
    round: int
    """The last round that the tracked run has."""


class Tracker(ABC):
    id: str
    """Finds the same tracked run again."""
    where: str
    """Where people find it: an address or a folder, and the command that shows it."""

    @abstractmethod
    def __init__(self, start: Start) -> None: ...

    @abstractmethod
    def numbers(self, rnd: int, values: Mapping[str, float]) -> None:
        """A round's record."""

    @abstractmethod
    def clients(self, rnd: int, rows: Rows) -> None:
        """The rows of clients.csv after an evaluation."""

    @abstractmethod
    def picture(self, rnd: int, name: str, file: Path) -> None:
        """A PNG."""

    @abstractmethod
    def end(self, summary: Mapping[str, float] | None) -> None:
        """Send what is left. `summary` is None for a run that did not finish."""


def numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a record by name; of a list its length. `rules/kept/test_accuracy` is nested."""
    found: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, list):
            found[prefix + key] = len(value)
        elif isinstance(value, (int, float)):
            found[prefix + key] = float(value)
    return found
