"""A client's private state on its node's disk.

A node cannot know whether the server will accept what it sends. So every round's private state is a file of
its own, and the next order names the round whose state counts: its receipt.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import safetensors

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import write_atomically
from pa3dfl.core.tree import Tree
from pa3dfl.engines.flower.wire import Refused, pack, unpack


@dataclass(frozen=True)
class Shelf:
    folder: Path
    keep: int
    """Accepted states to keep: a server that comes back from a checkpoint asks for an older one."""

    def load(self, receipt: int | None) -> Tree | None:
        if receipt is None:
            return None
        path = self._file(receipt)
        try:
            return unpack(path.read_bytes())
        except (OSError, Refused, safetensors.SafetensorError) as e:
            raise UserError(f"private state of round {receipt} cannot be read from {path}: {e}") from None

    def settle(self, receipt: int | None) -> None:
        """Forget what was never accepted, and what no checkpoint of the server can ask for."""
        accepted = [r for r in self.rounds() if receipt is not None and r <= receipt]
        for rnd in set(self.rounds()) - set(accepted[-self.keep :]):
            self._file(rnd).unlink(missing_ok=True)

    def save(self, rnd: int, tree: Tree) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file(rnd), pack(tree))
        except OSError as e:
            raise UserError(f"private state could not be written to {self.folder}: {e.strerror}") from None

    def rounds(self) -> list[int]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return sorted(int(n.split(".")[1]) for n in names if n.startswith("private.") and n.endswith(".safetensors"))

    def _file(self, rnd: int) -> Path:
        return self.folder / f"private.{rnd}.safetensors"
