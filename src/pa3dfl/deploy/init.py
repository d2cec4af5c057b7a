"""`pa3dfl deploy init`: everything that a deployment needs, in one folder, with a folder to carry to each node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import read_yaml
from pa3dfl.deploy.certificates import write_certificates, write_node_key
from pa3dfl.deploy.secret import new_secret
from pa3dfl.deploy.site import Site, dial


def init(site: Site, nodes: int, host: str, port: int, insecure: bool, options: Mapping[str, Any]) -> list[Path]:
    """Write what is not there yet; returns the nodes' folders. Again with more nodes, it adds those."""
    new = not site.server.exists()
    if new and site.folder.exists() and any(site.folder.iterdir()):
        raise UserError(f"{site.folder} is not empty and not a deployment: choose another folder")
    for folder in (site.keys, site.nodes):
        folder.mkdir(parents=True, exist_ok=True)
    if new:
        write_yaml(site.server, {"host": host, "port": port, "insecure": insecure})
        write_yaml(site.config, {**options, "clients": nodes})
        if not insecure:
            write_certificates(site.certificates, host)
    settings = site.settings()
    if not site.token.exists():
        new_secret(site.token)
    # Somebody's own method or model: nodes run it because they are told here, not because a server says so.
    chosen = read_yaml(site.config)
    code = [str(chosen[field]) for field in ("method", "model") if ":" in str(chosen.get(field))]
    made = []
    for name in (f"node-{i}" for i in range(nodes)):
        folder = site.nodes / name
        made.append(folder)
        if (folder / "node.yaml").exists():
            continue
        folder.mkdir(exist_ok=True)
        address = f"{dial(str(settings['host']))}:{settings['port']}"
        told = {"name": name, "superlink": address, "insecure": settings["insecure"]}
        write_yaml(folder / "node.yaml", told | ({"code": code} if code else {}))
        if not settings["insecure"]:
            (site.keys / f"{name}.pub").write_bytes(write_node_key(folder / "key"))
            (folder / "ca.crt").write_bytes(site.ca().read_bytes())
    return made


def write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))
