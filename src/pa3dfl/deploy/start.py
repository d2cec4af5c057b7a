"""Start of a node: our words about it become Flower's."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

from pa3dfl.assembly import device_of
from pa3dfl.data import load_own
from pa3dfl.deploy.capacity import check_capacity
from pa3dfl.deploy.site import environment, program
from pa3dfl.errors import UserError


def start_node(folder: Path, node: dict[str, Any]) -> None:
    """Becomes a small process that holds Flower's SuperNode: whoever stops it stops the node."""
    if "data" not in node:
        raise UserError("a node needs data: say --data FILE.npz, or set data in node.yaml")
    data = Path(str(node["data"])).expanduser().resolve()
    load_own(data)
    capacity, threads = str(node.get("capacity", "1")), str(node.get("threads", 0))
    check_capacity(capacity)
    device_of(str(node.get("device", "auto")))
    if not threads.isdigit():
        raise UserError(f"threads is {threads!r}: expected a whole number")
    words = [program("flower-supernode"), "--superlink", str(node["superlink"])]
    if node.get("insecure"):
        words.append("--insecure")
    else:
        for file in ("ca.crt", "key"):
            if not (folder / file).exists():
                raise UserError(f"{folder / file} is missing: copy the node's whole folder, or say --insecure")
        words += ["--root-certificates", str(folder / "ca.crt"), "--auth-supernode-private-key", str(folder / "key")]
    words += ["--host", "127.0.0.1", "--port", str(free_port())]
    facts = {"name": node["name"], "data": data, "capacity": capacity, "folder": folder}
    facts |= {"device": node.get("device", "auto"), "threads": threads}
    words += ["--node-config", " ".join(f"{k}={quoted(str(v))}" for k, v in facts.items())]
    keep = [sys.executable, str(Path(__file__).with_name("keep.py"))]
    os.execve(keep[0], [*keep, *words], environment() | {"FLWR_HOME": str(folder / "flower")})


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def quoted(text: str) -> str:
    if any(c in text for c in "\"'\n\\"):
        raise UserError(f"{text!r}: quotes and backslashes cannot be passed on to Flower")
    return f'"{text}"'
