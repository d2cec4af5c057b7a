"""`pa3dfl deploy init`: everything that a deployment needs, in one folder, with a folder to carry to each node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pa3dfl.deploy.certificates import write_certificates, write_node_key
from pa3dfl.deploy.site import Site, dial
from pa3dfl.errors import UserError

PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "pa3dfl-app"
version = "1.0.0"
description = "pa3dfl on Flower: all code is in the installed package"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "pa3dfl"

[tool.flwr.app.components]
serverapp = "pa3dfl_app.server:app"
clientapp = "pa3dfl_app.client:app"

[tool.flwr.app.config]
folder = ""
ticket = ""
resume = false
wait-for = 0
patience = 600.0
"""

SERVER = '''"""Flower starts this on the server."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from pa3dfl.deploy.serve import serve

    serve(grid, context)
'''

CLIENT = '''"""Flower starts this on a node, once for each message."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    from pa3dfl.deploy.resident import on_message

    return on_message(message, context)
'''


def init(site: Site, nodes: int, host: str, port: int, insecure: bool, options: Mapping[str, Any]) -> list[Path]:
    """Write what is not there yet; returns the nodes' folders. Again with more nodes, it adds those."""
    new = not site.server.exists()
    if new and site.folder.exists() and any(site.folder.iterdir()):
        raise UserError(f"{site.folder} is not empty and not a deployment: choose another folder")
    for folder in (site.app / "pa3dfl_app", site.keys, site.nodes):
        folder.mkdir(parents=True, exist_ok=True)
    if new:
        write_yaml(site.server, {"host": host, "port": port, "insecure": insecure})
        write_yaml(site.config, {**options, "clients": nodes})
        if not insecure:
            write_certificates(site.certificates, host)
    settings = site.settings()
    (site.app / "pyproject.toml").write_text(PYPROJECT)
    (site.app / "pa3dfl_app" / "__init__.py").write_text('"""The Flower app of pa3dfl."""\n')
    (site.app / "pa3dfl_app" / "server.py").write_text(SERVER)
    (site.app / "pa3dfl_app" / "client.py").write_text(CLIENT)
    made = []
    for name in (f"node-{i}" for i in range(nodes)):
        folder = site.nodes / name
        made.append(folder)
        if (folder / "node.yaml").exists():
            continue
        folder.mkdir(exist_ok=True)
        address = f"{dial(str(settings['host']))}:{settings['port']}"
        write_yaml(folder / "node.yaml", {"name": name, "superlink": address, "insecure": settings["insecure"]})
        if not settings["insecure"]:
            (site.keys / f"{name}.pub").write_bytes(write_node_key(folder / "key"))
            (folder / "ca.crt").write_bytes(site.ca().read_bytes())
    return made


def write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))
