"""Checkpoints of a run: a process may be killed at any moment, and the last committed state can be read.

A checkpoint is a set of safetensors files and a JSON manifest that names them. Each file's name holds its round, and
the file is never changed. Replacing the manifest commits the state. The previous manifest and its files stay, so that a
run can still be resumed if the disk loses the last write.

The state of the best evaluation is kept in the same way: the manifest names its files, so that they stay. It costs no
further write, because a checkpoint is saved whenever the best improves.
"""

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import read_tensors, write_atomically, write_tensors
from pa3dfl.core.tree import Tree, wire

CURRENT, PREVIOUS = "state.json", "state.previous.json"


@dataclass
class Saved:
    round: int
    server: Tree
    private: MutableMapping[int, Tree]
    facts: dict[str, Any]


class BestFiles(NamedTuple):
    """The names of the files that a client's best evaluation started from; None where there was no tree."""

    round: int
    server: str | None
    private: str | None
    model: str | None
    """The tested model, if it was tested by `kept`: it cannot be computed again."""


@dataclass
class Checkpoints:
    """The folder `checkpoints` of a run."""

    folder: Path
    best: dict[int, BestFiles] = field(default_factory=dict)
    """The files of each client's best evaluation."""
    _private_files: dict[int, str] = field(default_factory=dict)
    _models: dict[int, str] = field(default_factory=dict)

    def put_models(self, rnd: int, models: Mapping[int, Tree | None]) -> None:
        """Write the tested models of a round, in place of earlier ones; None: the client was not tested."""
        for i, model in models.items():
            self._models.pop(i, None)
            if model is not None:
                name = f"model-{i}.{rnd}.safetensors"
                self.folder.mkdir(parents=True, exist_ok=True)
                write_tensors(self.folder / name, wire(model))
                self._models[i] = name

    def save(
        self, rnd: int, server: Tree, private: Mapping[int, Tree], changed: set[int], best: Mapping[int, int],
        facts: Any,
    ) -> None:  # fmt: skip
        """Commit the state after round `rnd`.

        `changed` names the clients with a new private state, `best` the round of each client's best evaluation.
        """
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
            for i in [i for i, of in best.items() if of == rnd]:
                self.best[i] = BestFiles(rnd, server_file, self._private_files.get(i), self._models.get(i))
            self.best = {i: files for i, files in self.best.items() if i in best}
            manifest = {
                "round": rnd,
                "server": server_file,
                "private": names,
                "models": {str(i): name for i, name in self._models.items()},
                "best": {str(i): files for i, files in self.best.items()},
                "facts": facts,
            }
            if (self.folder / CURRENT).exists():
                write_atomically(self.folder / PREVIOUS, (self.folder / CURRENT).read_bytes())
            write_atomically(self.folder / CURRENT, json.dumps(manifest).encode())
            self._forget()
        except OSError as e:
            raise UserError(f"checkpoint of round {rnd} could not be written to {self.folder}: {e.strerror}") from e

    def facts(self) -> dict[str, Any] | None:
        """Everything in the newest checkpoint but tensors; also sets `best`. None before the first commit."""
        path = self.folder / CURRENT
        if not path.exists():
            return None
        try:
            manifest = json.loads(path.read_text())
            self._name(manifest)
            return dict(manifest["facts"])
        except (ValueError, KeyError, TypeError) as e:
            raise UserError(f"{path} is not the manifest of a checkpoint ({type(e).__name__} {e})") from None

    def load(self, device: torch.device, private: MutableMapping[int, Tree] | None = None) -> Saved | None:
        """The newest state that can be read, None before the first commit. Clients' states are put into `private`."""
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
        self._name(manifest)
        server = self.read(manifest["server"], device)
        for i, name in self._private_files.items():
            private[i] = self.read(name, device)
        return Saved(manifest["round"], server, private, manifest["facts"])

    def _name(self, manifest: dict[str, Any]) -> None:
        """Read the names of files from a manifest."""
        self._private_files = {int(i): name for i, name in manifest["private"].items()}
        # Runs of earlier versions have neither.
        self._models = {int(i): name for i, name in manifest.get("models", {}).items()}
        self.best = {int(i): BestFiles(*files) for i, files in manifest.get("best", {}).items()}

    def round(self) -> int:
        """The round of the newest checkpoint; 0 before the first."""
        return int(self._manifest()["round"])

    def server(self, device: torch.device) -> Tree:
        """The server's state in the newest checkpoint."""
        return self.read(self._manifest()["server"], device)

    def _manifest(self) -> dict[str, Any]:
        path = self.folder / CURRENT
        return dict(json.loads(path.read_text())) if path.exists() else {"round": 0, "server": None}

    def read(self, name: str | None, device: torch.device) -> Tree:
        """The tensors of a file; an empty tree for None."""
        return {k: v.to(device) for k, v in read_tensors(self.folder / name).items()} if name else {}

    def _forget(self) -> None:
        """Remove tensor files that neither manifest names."""
        named: set[str | None] = set()
        for manifest in (CURRENT, PREVIOUS):
            path = self.folder / manifest
            if path.exists():
                content = json.loads(path.read_text())
                named |= {content["server"], *content["private"].values(), *content.get("models", {}).values()}
                named.update(name for _, *names in content.get("best", {}).values() for name in names)
        for file in self.folder.iterdir():
            if file.name not in named and file.suffix in (".safetensors", ".part"):
                file.unlink(missing_ok=True)
