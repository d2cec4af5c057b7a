"""The folder that `pa3dfl deploy init` writes: where things lie, and how Flower's programs are called on it."""

import ipaddress
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config, read_yaml
from pa3dfl.deploy.secret import read_secret
from pa3dfl.engines import flower  # noqa: F401  (keeps Flower from reporting home)


@dataclass(frozen=True)
class Site:
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def server(self) -> Path:
        return self.folder / "server.yaml"

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def nodes(self) -> Path:
        return self.folder / "nodes"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def seats(self) -> Path:
        """Who sits where: made at the start of a run, needed to go on with it."""
        return self.folder / "seats.json"

    @property
    def log(self) -> Path:
        return self.folder / "train.log"

    @property
    def outcome(self) -> Path:
        return self.folder / "outcome.json"

    @property
    def ticket(self) -> Path:
        """Permission to start one training, taken when it starts."""
        return self.folder / "ticket"

    @property
    def lock(self) -> Path:
        return self.folder / "train.lock"

    @property
    def token(self) -> Path:
        """Who holds it may start trainings and let nodes in."""
        return self.folder / "token"

    def settings(self) -> dict[str, Any]:
        if not self.server.exists():
            raise UserError(f"{self.folder} is not a deployment: make one with `pa3dfl deploy init {self.folder}`")
        return {"host": "127.0.0.1", "port": 9093, "insecure": False} | read_yaml(self.server)

    def proxies(self) -> list[str]:
        """Addresses of proxies on this machine whose X-Forwarded-For is believed."""
        given = self.settings().get("proxies") or []
        for text in given if isinstance(given, list) else [given]:
            try:
                ipaddress.ip_address(text)
            except ValueError:
                raise UserError(f"{self.server}: proxies has {text!r}: expected a list of IP addresses") from None
        return list(given)

    def read_token(self) -> bytes:
        return read_secret(self.token, f"pa3dfl deploy init {self.folder}")

    def address(self) -> str:
        settings = self.settings()
        return f"{dial(settings['host'])}:{settings['port']}"

    def root(self) -> bytes | None:
        return None if self.settings()["insecure"] else self.ca().read_bytes()

    def home(self) -> Path:
        """Where Flower's programs keep what they keep."""
        home = self.folder.resolve() / "flower"
        home.mkdir(exist_ok=True)
        return home

    def environment(self) -> dict[str, str]:
        return environment() | {"FLWR_HOME": str(self.home())}

    def ca(self) -> Path:
        return self.certificates.resolve() / "ca.crt"


def site_config(site: Site) -> Config:
    from pa3dfl.methods.assembly import configure

    given = read_yaml(site.config)
    return configure(given | {"out": str(site.run.resolve()), "engine": "flower", "checkpoint_every": 1})


def dial(host: str) -> str:
    """The address to call from this machine a server that listens on `host`."""
    return "127.0.0.1" if host == "0.0.0.0" else host


def environment() -> dict[str, str]:
    """Flower starts programs of its own by name: they must be those of this Python."""
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
