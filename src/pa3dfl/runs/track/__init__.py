"""`--track`: sends a run to TensorBoard, trackio, W&B or MLflow, each from its own process.

The process reads the run's files, which are complete at any moment, so it can neither stop nor slow a run, and
after an interruption it sends what was missed.

    follow        the process: sends what is new in a run's files to its tracker
    base          the interface of a tracker
    tensorboard, trackio, wandb, mlflow       one file for each
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.core.options.config import parse_track

NEEDS = {"tensorboard": "tensorboard", "trackio": "trackio", "wandb": "wandb", "mlflow": "mlflow"}
"""The library that each tracker imports; the extra has the tracker's name."""
PATIENCE = 60.0
"""Seconds that the end of a run waits for each tracker."""


def check(track: str | None) -> None:
    """Refuse trackers whose library is not installed."""
    for name in parse_track(track):
        found = find_spec(NEEDS[name])
        if found is None or found.origin is None:  # without an origin: a folder of that name, such as W&B writes
            raise UserError(f"--track {name} needs {NEEDS[name]}: pip install 'pa3dfl[{name}]'")


class Tracked:
    """Trackers that follow one run, started and ended with it."""

    def __init__(
        self, path: Path, track: str | None, say: Callable[[str], None] = log.warning,
        tell: Callable[[str], None] = log.info,
    ) -> None:  # fmt: skip
        self.path, self.names, self.say, self.tell = path, parse_track(track), say, tell
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Tracked":
        for name in self.names:
            try:
                self._processes[name] = self._start(name)
            except OSError as e:
                self.say(f"{name} could not be started, the run goes on without it: {e}")
        return self

    def __call__(self, record: Mapping[str, Any] | None = None) -> None:
        """A round is on disk: wake the trackers, without waiting for them."""
        for name, process in list(self._processes.items()):
            assert process.stdin is not None
            if process.poll() is not None:
                self._lost(name)
                continue
            with suppress(OSError):  # full: the process will read the files anyway; closed: noticed at the next round
                os.write(process.stdin.fileno(), b"\n")

    def __exit__(self, *_: object) -> None:
        """The trackers send what is left. Trackers that take long continue on their own."""
        for process in self._processes.values():
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        for name, process in list(self._processes.items()):
            try:
                if process.wait(PATIENCE) != 0:
                    self._lost(name)
                    continue
            except subprocess.TimeoutExpired:
                self.say(f"{name} is still sending after {PATIENCE:.0f} s: it continues alone, see {self._log(name)}")
                continue
            self.tell(f"{name}: {json.loads(self._state(name).read_text())['where']}")

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        self._log(name).parent.mkdir(exist_ok=True)
        with self._log(name).open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "pa3dfl.runs.track.follow", name, str(self.path.resolve())],
                stdin=subprocess.PIPE, stdout=out, stderr=out, bufsize=0,
                start_new_session=True,  # Ctrl-C is for the run; its end shows at standard input
            )  # fmt: skip
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def _lost(self, name: str) -> None:
        del self._processes[name]
        said = self._log(name).read_text("utf-8", "replace").split("\n") if self._log(name).exists() else []
        reason = next((line for line in reversed(said) if line.strip()), "it ended without a message")
        self.say(
            f"{name} failed, the run goes on without it: {reason.strip()[:300]} (see {self._log(name)}; "
            f"`pa3dfl resume {self.path}` sends what is missing)"
        )

    def _log(self, name: str) -> Path:
        return self.path / "track" / f"{name}.log"

    def _state(self, name: str) -> Path:
        return self.path / "track" / f"{name}.json"
