"""The state store of a node: a client's private state on disk.

A node does not know whether the server will accept its update. So the private state of every round has a file of its
own, and the next order names the round of the state to use: the receipt.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import safetensors

from pa3dfl.core.disk import write_atomically
from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.engines.flower.messages import Refused, pack, unpack


@dataclass(frozen=True)
class StateStore:
    folder: Path
    keep: int
    """Number of accepted states to keep: a server that resumes from a checkpoint needs an older one."""

    def load(self, receipt: int | None) -> Tree | None:
        if receipt is None:
            return None
        path = self._file(receipt)
        try:
            return unpack(path.read_bytes())
        except (OSError, Refused, safetensors.SafetensorError) as e:
            raise UserError(f"private state of round {receipt} cannot be read from {path}: {e}") from None

    def settle(self, receipt: int | None) -> None:
        """Delete states that were not accepted, and those older than any checkpoint of the server."""
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
