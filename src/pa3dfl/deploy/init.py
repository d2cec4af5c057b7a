"""Writes the deployment folder, with one folder for each node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import read_yaml
from pa3dfl.deploy.certificates import write_certificates, write_node_key
from pa3dfl.deploy.folder import DeploymentFolder, dial
from pa3dfl.deploy.secret import new_secret


def init(
    deployment: DeploymentFolder, nodes: int, host: str, port: int, insecure: bool, options: Mapping[str, Any]
) -> list[Path]:
    """Write what is missing and return the folders of nodes. A later call with more nodes adds their folders."""
    new = not deployment.server.exists()
    if new and deployment.path.exists() and any(deployment.path.iterdir()):
        raise UserError(f"{deployment.path} is not empty and not a deployment: choose another folder")
    for folder in (deployment.keys, deployment.nodes):
        folder.mkdir(parents=True, exist_ok=True)
    if new:
        write_yaml(deployment.server, {"host": host, "port": port, "insecure": insecure})
        write_yaml(deployment.config, {**options, "clients": nodes})
        if not insecure:
            write_certificates(deployment.certificates, host)
    settings = deployment.settings()
    if not deployment.token.exists():
        new_secret(deployment.token)
    # Nodes import a user's own method or model only if node.yaml names it; a server's word is not enough.
    chosen = read_yaml(deployment.config)
    code = [str(chosen[field]) for field in ("method", "model") if ":" in str(chosen.get(field))]
    folders = []
    for name in (f"node-{i}" for i in range(nodes)):
        folder = deployment.nodes / name
        folders.append(folder)
        # The folder of a node that has a key may be on the node's machine by now.
        if (folder / "node.yaml").exists() or (deployment.keys / f"{name}.pub").exists():
            continue
        folder.mkdir(exist_ok=True)
        address = f"{dial(str(settings['host']))}:{settings['port']}"
        values = {"name": name, "superlink": address, "insecure": settings["insecure"]}
        write_yaml(folder / "node.yaml", values | ({"code": code} if code else {}))
        if not settings["insecure"]:
            (deployment.keys / f"{name}.pub").write_bytes(write_node_key(folder / "key"))
            (folder / "ca.crt").write_bytes(deployment.ca().read_bytes())
    return folders


def write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))
