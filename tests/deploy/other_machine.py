"""Another machine: a network namespace of its own, joined to this one by a virtual cable."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest


class OtherMachine:
    """A context; where there are no network namespaces, entering it skips the test."""

    def __init__(self) -> None:
        n = os.getpid() % 250
        self.name, self.cable = f"pa3dfl{os.getpid()}", (f"pa{os.getpid()}a", f"pa{os.getpid()}b")
        self.here, self.there = f"10.231.{n}.1", f"10.231.{n}.2"

    def __enter__(self) -> Self:
        if shutil.which("ip") is None:
            pytest.skip("network namespaces need the command ip (Debian: iproute2)")
        try:
            self._ip("netns", "add", self.name)
            self._connect()
            self._ip("addr", "add", f"{self.here}/24", "dev", self.cable[0])
            self._ip("link", "set", self.cable[0], "up")
            self._ip("-n", self.name, "addr", "add", f"{self.there}/24", "dev", self.cable[1])
            self._ip("-n", self.name, "link", "set", self.cable[1], "up")
            self._ip("-n", self.name, "link", "set", "lo", "up")
        except (subprocess.CalledProcessError, OSError) as e:
            self.close()
            pytest.skip(f"network namespaces are not available: {getattr(e, 'stderr', str(e)).strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        self._ip("link", "add", self.cable[0], "type", "veth", "peer", "name", self.cable[1])
        self._ip("link", "set", self.cable[1], "netns", self.name)

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def run(self, *words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | environment
        return subprocess.run([*self.prefix, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=900)

    def close(self) -> None:
        for words in (("link", "del", self.cable[0]), ("netns", "del", self.name)):
            subprocess.run(["ip", *words], capture_output=True)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def machine_for_module(kind: type[OtherMachine]) -> Any:
    """A fixture: one machine of this kind for all tests of a module."""

    @pytest.fixture(scope="module")
    def machine() -> Iterator[OtherMachine]:
        with kind() as machine:
            yield machine

    return machine
