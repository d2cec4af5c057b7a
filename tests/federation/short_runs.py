"""Short runs: made, stopped in the middle, and compared bit by bit."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import TINY
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.experiments import api
from pa3dfl.federation.checkpoint import Checkpoints


def run(data: str, out: Path, **given: Any) -> Path:
    api.run(**(TINY | {"data": data, "out": str(out)} | given))
    return out


def rounds(path: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if k != "seconds"} for r in records]


def bits(path: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint."""
    saved = Checkpoints(path / "checkpoints").load(torch.device("cpu"))
    assert saved is not None
    trees = {"server": saved.server} | {f"client {i}": t for i, t in saved.private.items()}
    return {f"{who} {k}": v.numpy().tobytes() for who, tree in trees.items() for k, v in tree.items()}


def assert_same(a: Path, b: Path) -> None:
    assert rounds(a) == rounds(b)
    assert (a / "clients.csv").read_text() == (b / "clients.csv").read_text()
    assert bits(a) == bits(b)


class StopsAt(Threaded):
    """Interrupted in the middle of its n-th local training, as by Ctrl-C."""

    def __init__(self, n: int) -> None:
        super().__init__(2)
        self.left = itertools.count(n - 1, -1)

    def train_client(self, *args: Any) -> Any:
        if next(self.left) == 0:
            raise KeyboardInterrupt
        return super().train_client(*args)


def stop_at(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(api, "engine_of", lambda *_: StopsAt(n))
