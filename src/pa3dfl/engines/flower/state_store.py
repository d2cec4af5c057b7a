"""The store of a node's private states: one file for each round, on the node's own disk.

A node does not know whether the server accepts its update. The next order says so: its receipt is the last round whose
update was accepted, and the state of that round is the client's.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import safetensors

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import read_tensors, write_tensors
from pa3dfl.core.tree import Tree, wire


@dataclass(frozen=True)
class StateStore:
    folder: Path
    keep: int
    """How many accepted states to keep: a server that resumes from a checkpoint asks for an older one."""
    best: int | None = None
    """The round of an evaluation whose state is kept as well, so that its model can be made again."""

    def load(self, receipt: int | None) -> Tree | None:
        """The state of that round. A node without any state starts anew: its disk or its client number is new."""
        if receipt is None or not self.rounds():
            return None
        path = self._file(receipt)
        try:
            return read_tensors(path)
        except (OSError, safetensors.SafetensorError) as e:
            raise UserError(f"private state of round {receipt} cannot be read from {path}: {e}") from None

    def settle(self, receipt: int | None) -> None:
        """Remove the states that were not accepted, and those that are older than the server's checkpoints."""
        accepted = [r for r in self.rounds() if receipt is not None and r <= receipt]
        tested = [r for r in accepted if self.best is not None and r <= self.best]
        for rnd in set(self.rounds()) - set(accepted[-self.keep :]) - set(tested[-1:]):
            self._file(rnd).unlink(missing_ok=True)

    def save(self, rnd: int, tree: Tree) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(self._file(rnd), wire(tree), durable=True)
        except OSError as e:
            raise UserError(f"private state could not be written to {self.folder}: {e.strerror}") from None

    def rounds(self) -> list[int]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return sorted(int(n.split(".")[1]) for n in names if n.startswith("private.") and n.endswith(".safetensors"))

    def _file(self, rnd: int) -> Path:
        return self.folder / f"private.{rnd}.safetensors"
