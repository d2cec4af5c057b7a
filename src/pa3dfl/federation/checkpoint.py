"""Checkpoints that survive a kill at any moment: safetensors and JSON, no pickle.

Tensor files are written once under names that carry their round, and never changed. One manifest names the
current set; replacing it is the only commit. The manifest before it and its files are kept, so that a disk
that loses the last write still leaves a run to resume.
"""

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import read_tensors, write_atomically, write_tensors
from pa3dfl.core.tree import Tree

CURRENT, PREVIOUS = "state.json", "state.previous.json"


@dataclass
class Saved:
    round: int
    server: Tree
    private: MutableMapping[int, Tree]
    facts: dict[str, Any]


@dataclass
class Store:
    """The folder `checkpoints` of a run."""

    folder: Path
    _private_files: dict[int, str] = field(default_factory=dict)

    def save(self, rnd: int, server: Tree, private: Mapping[int, Tree], changed: set[int], facts: Any) -> None:
        """Commit the state after round `rnd`; `changed` names the clients whose private state is new."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            files = {i: f"client-{i}.{rnd}.safetensors" for i in changed if private.get(i)}
            for i, name in files.items():
                write_tensors(self.folder / name, private[i])
            self._private_files |= files
            server_file = f"server.{rnd}.safetensors" if server else None
            if server_file:
                write_tensors(self.folder / server_file, server)
            names = {str(i): name for i, name in self._private_files.items()}
            manifest = {"round": rnd, "server": server_file, "private": names, "facts": facts}
            if (self.folder / CURRENT).exists():
                write_atomically(self.folder / PREVIOUS, (self.folder / CURRENT).read_bytes())
            write_atomically(self.folder / CURRENT, json.dumps(manifest).encode())
            self._forget()
        except OSError as e:
            raise UserError(f"checkpoint of round {rnd} could not be written to {self.folder}: {e.strerror}") from e

    def load(self, device: torch.device, private: MutableMapping[int, Tree] | None = None) -> Saved | None:
        """The newest state that can be read, or None before the first commit; clients' states go into `private`."""
        into: MutableMapping[int, Tree] = {} if private is None else private
        reasons = []
        for name in (CURRENT, PREVIOUS):
            path = self.folder / name
            if not path.exists():
                continue
            try:
                into.clear()
                return self._load(json.loads(path.read_text()), device, into)
            except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as e:
                reasons.append(f"{name}: {e}")
        if reasons:
            raise UserError(f"no checkpoint in {self.folder} can be read ({'; '.join(reasons)}): start the run anew")
        return None

    def _load(self, manifest: dict[str, Any], device: torch.device, private: MutableMapping[int, Tree]) -> Saved:
        self._private_files = {int(i): name for i, name in manifest["private"].items()}
        server = self._read(manifest["server"], device) if manifest["server"] else {}
        for i, name in self._private_files.items():
            private[i] = self._read(name, device)
        return Saved(manifest["round"], server, private, manifest["facts"])

    def _read(self, name: str, device: torch.device) -> Tree:
        return {k: v.to(device) for k, v in read_tensors(self.folder / name).items()}

    def _forget(self) -> None:
        """Remove tensor files that neither manifest names."""
        named: set[str | None] = set()
        for manifest in (CURRENT, PREVIOUS):
            path = self.folder / manifest
            if path.exists():
                content = json.loads(path.read_text())
                named |= {content["server"], *content["private"].values()}
        for file in self.folder.iterdir():
            if file.name not in named and file.suffix in (".safetensors", ".part"):
                file.unlink(missing_ok=True)
