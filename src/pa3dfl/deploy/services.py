"""Files with which systemd or Docker Compose run the server and the nodes."""

import json
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from string import Template

from pa3dfl import __version__
from pa3dfl.core.errors import UserError
from pa3dfl.deploy.folder import DeploymentFolder

KINDS = ("systemd", "compose")
NODES = Path("/var/lib/pa3dfl")
"""Where the folders of nodes are expected on their machines, if systemd starts them."""


def write_services(deployment: DeploymentFolder, nodes: Iterable[Path], kind: str) -> list[Path]:
    """One file in the deployment folder and one in each node's folder; existing ones stay as they are."""
    write = {"systemd": _unit, "compose": _compose}[kind]
    folders = [deployment.path, *(folder for folder in nodes if folder.is_dir())]
    files = [write(folder, "node" if i else "server") for i, folder in enumerate(folders)]
    for file, text in files:
        if not file.exists():
            file.write_text(text)
    return [file for file, _ in files]


def _unit(folder: Path, role: str) -> tuple[Path, str]:
    place = folder.resolve() if role == "server" else NODES / folder.name
    if not str(place).isprintable():
        raise UserError(f"{str(place)!r}: systemd accepts no such path")
    words = [sys.executable, "-m", "pa3dfl.cli", "deploy", role, str(place)]
    name = role if role == "server" else folder.name
    text = _template("systemd.service").substitute(
        description=f"pa3dfl {name}".replace("%", "%%"),
        command=" ".join(_quoted(word).replace("$", "$$") for word in words),
        directory=str(place).replace("%", "%%"),
        writable=_quoted(str(place)),
        devices="yes" if role == "server" else "no",  # a node may compute on a GPU
    )
    return folder / f"pa3dfl-{name}.service", text


def _compose(folder: Path, role: str) -> tuple[Path, str]:
    owner, place = folder.stat(), f"/{role}"
    text = _template("compose.yaml").substitute(
        role=role,
        version=__version__,
        extras="flower,metrics" if role == "server" else "flower",
        command=json.dumps(["pa3dfl", "deploy", role, place]),
        user=f"{owner.st_uid}:{owner.st_gid}",
        folder=place,
    )
    return folder / "compose.yaml", text


def _template(name: str) -> Template:
    return Template((resources.files("pa3dfl.deploy") / "templates" / name).read_text())


def _quoted(text: str) -> str:
    """As systemd reads it: in double quotes, with specifiers escaped."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
