"""A deployment with its real processes on this machine: TLS, keys, one process group for each node."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from machines import write_data

from pa3dfl.deploy.folder import DeploymentFolder

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def pa3dfl(*words: str) -> list[str]:
    return [sys.executable, "-m", "pa3dfl.cli", *words]


@contextmanager
def beside(machine: Any, folder: Path, capacities: list[str], **options: Any) -> Iterator["Live"]:
    """A deployment that another machine reaches: the server and node 0 are here, the other nodes are there."""
    with Live(folder, capacities, **options, host=machine.here) as live:
        live.server()
        for i in range(len(capacities)):
            live.node(i, prefix=machine.prefix if i else ())
        yield live


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=900)
    return process.returncode, out + err


class Live:
    def __init__(self, folder: Path, capacities: list[str], **options: Any) -> None:
        self.folder, self.capacities, self.deployment = folder, list(capacities), DeploymentFolder(folder / "site")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = dict(ENVIRONMENT)
        write_data(folder, len(capacities), rows=40 * len(capacities))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        flags = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", str(v))]
        words = ("deploy", "init", "site", "--nodes", str(len(capacities)), "--port", str(self.port), *flags)
        subprocess.run(pa3dfl(*words), cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            self.kill(name, signal.SIGTERM)

    def server(self) -> None:
        self.start("server", "deploy", "server", "site")

    def node(self, i: int, *flags: str, folder: str | None = None, prefix: tuple[str, ...] = ()) -> None:
        place = folder or f"site/nodes/node-{i}"
        words = ("--data", f"node-{i}.npz", "--capacity", self.capacities[i])
        self.execute(f"node-{i}", [*prefix, *pa3dfl("deploy", "node", place, *words, *flags)])

    def start(self, name: str, *words: str) -> None:
        self.execute(name, pa3dfl(*words))

    def execute(self, name: str, words: list[str], **environment: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """The process and all that it started: Flower's programs stay in our group."""
        process = self.running.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def configure(self, **changes: Any) -> None:
        values = yaml.safe_load(self.deployment.config.read_text())
        self.deployment.config.write_text(yaml.safe_dump(values | changes))

    def train(self, *flags: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        # So that nobody takes an earlier training's words and rounds for this one's.
        self.deployment.log.unlink(missing_ok=True)
        if "--overwrite" in flags:
            shutil.rmtree(self.deployment.run, ignore_errors=True)
        words = pa3dfl("deploy", "train", "site", *flags)
        return subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def wait_for(self, said: str, seconds: float = 300) -> None:
        """Until the server's program has said so."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.deployment.log.exists() and said in self.deployment.log.read_text():
                return
            time.sleep(0.2)
        raise AssertionError(f"never said: {said}")

    def wait_for_round(self, number: int, seconds: float = 300) -> None:
        path, deadline = self.deployment.run / "rounds.jsonl", time.monotonic() + seconds
        while time.monotonic() < deadline:
            if path.exists() and len(path.read_text().splitlines()) >= number:
                return
            time.sleep(0.2)
        raise AssertionError(f"no round {number}")
