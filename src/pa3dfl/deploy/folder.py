"""The deployment folder that `pa3dfl deploy init` writes: paths, settings, environment of Flower's programs."""

import fcntl
import ipaddress
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pa3dfl.core.errors import UserError
from pa3dfl.core.folders import Entry
from pa3dfl.core.options.config import Config, read_yaml
from pa3dfl.deploy.secret import read_secret
from pa3dfl.engines import flower  # noqa: F401  (disables Flower's telemetry)


@dataclass(frozen=True)
class DeploymentFolder:
    path: Path

    config = Entry("config.yaml")
    server = Entry("server.yaml")
    certificates = Entry("certificates")
    keys = Entry("keys")
    nodes = Entry("nodes")
    run = Entry("run")
    registrations = Entry("registrations.json")
    """The registered clients: written at the start of a run, read when it is resumed."""
    log = Entry("train.log")
    outcome = Entry("outcome.json")
    ticket = Entry("ticket")
    """Permission to start one training; the server deletes it at the start."""
    lock = Entry("train.lock")
    token = Entry("token")
    """Whoever can read it may start trainings and register nodes."""

    def is_training(self) -> bool:
        """Whether a training holds the lock."""
        try:
            with self.lock.open() as f:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def settings(self) -> dict[str, Any]:
        if not self.server.exists():
            raise UserError(f"{self.path} is not a deployment: make one with `pa3dfl deploy init {self.path}`")
        return {"host": "127.0.0.1", "port": 9093, "insecure": False} | read_yaml(self.server)

    def proxies(self) -> list[str]:
        """Addresses of proxies on this machine whose X-Forwarded-For is trusted."""
        given = self.settings().get("proxies") or []
        for text in given if isinstance(given, list) else [given]:
            try:
                ipaddress.ip_address(text)
            except ValueError:
                raise UserError(f"{self.server}: proxies has {text!r}: expected a list of IP addresses") from None
        return list(given)

    def read_token(self) -> bytes:
        return read_secret(self.token, f"pa3dfl deploy init {self.path}")

    def address(self) -> str:
        settings = self.settings()
        return f"{dial(settings['host'])}:{settings['port']}"

    def root(self) -> bytes | None:
        return None if self.settings()["insecure"] else self.ca().read_bytes()

    def home(self) -> Path:
        """The home folder of Flower's programs."""
        home = self.path.resolve() / "flower"
        home.mkdir(exist_ok=True)
        return home

    def environment(self) -> dict[str, str]:
        return environment() | {"FLWR_HOME": str(self.home())}

    def ca(self) -> Path:
        return self.certificates.resolve() / "ca.crt"


def deployment_config(deployment: DeploymentFolder) -> Config:
    from pa3dfl.methods.assembly import configure

    given = read_yaml(deployment.config)
    if given.get("newcomers") is not None:
        raise UserError(
            f"{deployment.config} names newcomers: those are simulated; nodes that come later join with "
            "`pa3dfl deploy train --join`"
        )
    return configure(given | {"out": str(deployment.run.resolve()), "engine": "flower", "checkpoint_every": 1})


def dial(host: str) -> str:
    """The address at which programs on this machine reach a server that listens on `host`."""
    return "127.0.0.1" if host == "0.0.0.0" else host


def environment() -> dict[str, str]:
    """The environment for Flower, which starts its programs by name: those of this Python come first in PATH."""
    here = str(Path(sys.executable).parent)
    return os.environ | {
        "PATH": here + os.pathsep + os.environ.get("PATH", ""),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def program(name: str) -> str:
    found = shutil.which(name, path=environment()["PATH"])
    if found is None:
        raise UserError(f"{name} was not found: pip install 'pa3dfl[flower]'")
    return found
