"""The process that sends a run to one tracker: `python -m pa3dfl.runs.track.follow NAME DIR`.

Each byte on standard input says that a round is on disk; the end of input says that the run has ended in any way.
"""

import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pa3dfl.runs.rundata import load, read_clients
from pa3dfl.runs.track.base import Start, Tracker, numbers

CLASSES = {"tensorboard": "TensorBoard", "trackio": "Trackio", "wandb": "WandB", "mlflow": "MLflow"}


class Follower:
    """Sends what is new in the files of a run, once."""

    def __init__(self, name: str, path: Path) -> None:
        self.run, self.state = load(path), path / "track" / f"{name}.json"
        known: dict[str, Any] = json.loads(self.state.read_text()) if self.state.exists() else {}
        self.at, self.round = 0, int(known.get("round", 0))
        kind: type[Tracker] = getattr(import_module(f"pa3dfl.runs.track.{name}"), CLASSES[name])
        self.tracker = kind(Start(path, "/".join(path.parts[-2:]), self.run.config, known.get("id"), self.round))
        self.keep()

    def keep(self) -> None:
        said = {"id": self.tracker.id, "where": self.tracker.where, "round": self.round}
        part = self.state.with_name(self.state.name + ".part")
        part.write_text(json.dumps(said))
        os.replace(part, self.state)

    def catch_up(self) -> None:
        tested = False
        for record in self.records():
            if record["round"] > self.round:  # a resumed run repeats rounds, with the same numbers
                self.tracker.numbers(record["round"], numbers({k: v for k, v in record.items() if k != "round"}))
                self.round, tested = record["round"], tested or record.get("test_accuracy") is not None
                self.keep()
        if tested:
            self.tracker.clients(self.round, read_clients(self.run.path))

    def records(self) -> Iterator[dict[str, Any]]:
        """The complete lines that were added since the last call."""
        file = self.run.path / "rounds.jsonl"
        if not file.is_file():
            return
        with file.open("rb") as lines:
            lines.seek(self.at)
            for line in lines:
                if line.endswith(b"\n"):
                    self.at += len(line)
                    yield json.loads(line)

    def end(self) -> None:
        self.catch_up()
        for file in sorted(self.run.path.glob("*.png")):
            self.tracker.picture(self.round, file.stem, file)
        self.tracker.end(numbers(self.run.summary) if self.run.summary else None)


def main(name: str, path: Path) -> None:
    follower = Follower(name, path)
    while os.read(0, 1 << 16):
        follower.catch_up()
    follower.end()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
