"""A run that trackers follow, without training: its files are written round by round."""

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from pa3dfl.runs import track


def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has begun, and the trackers' stores beside it."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr(track, "PATIENCE", 300.0)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs" / "a"
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"method": "fedavg", "rounds": 4, "p_min": None}))
    return path


def play(path: Path, first: int, last: int) -> dict[str, Any]:
    """What a run writes in these rounds; even ones are evaluated."""
    record: dict[str, Any] = {}
    for rnd in range(first, last + 1):
        record = {"round": rnd, "train_loss": 1 / rnd, "missing": [2], "bytes_up": 10**6 * rnd}
        if rnd % 2 == 0:
            record |= {"test_accuracy": rnd / 10, "rules": {"kept": {"test_accuracy": rnd / 20}}}
            with (path / "clients.csv").open("w", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(("client", "r", "width", "test_accuracy"))
                rows.writerows([(0, 1.0, "1/4", rnd / 10), (1, 0.25, "1/8", "")])
        with (path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
    return record


def state(path: Path, name: str) -> dict[str, Any]:
    file = path / "track" / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def wait_for(condition: Any, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def events(path: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(path / "tensorboard"))
    found.Reload()
    return found


def series(found: Any, tag: str) -> list[tuple[int, float]]:
    return [(e.step, round(e.value, 6)) for e in found.Scalars(tag)]
