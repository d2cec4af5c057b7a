"""Starts a node: translates node.yaml and flags to the arguments of Flower's SuperNode."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

from pa3dfl.core.errors import UserError
from pa3dfl.data import load_own
from pa3dfl.deploy.capacity import check_capacity
from pa3dfl.deploy.clock import make as make_clock
from pa3dfl.deploy.folder import environment
from pa3dfl.deploy.secret import new_secret
from pa3dfl.deploy.supervisor import supervised
from pa3dfl.methods.assembly import device_of


def start_node(folder: Path, node: dict[str, Any]) -> None:
    """Replace this process by a supervisor of SuperNode and executor, which stops both when it is stopped."""
    if "data" not in node:
        raise UserError("a node needs data: use --data FILE.npz, or set data in node.yaml")
    data = Path(str(node["data"])).expanduser().resolve()
    load_own(data)
    capacity, threads = str(node.get("capacity", "1")), str(node.get("threads", 0))
    check_capacity(capacity)
    device_of(str(node.get("device", "auto")))
    if not threads.isdigit():
        raise UserError(f"threads is {threads!r}: expected a whole number")
    words = [sys.executable, "-P", str(Path(__file__).with_name("supernode.py")), "--superlink", str(node["superlink"])]
    if node.get("insecure"):
        words.append("--insecure")
    else:
        for file in ("ca.crt", "key"):
            if not (folder / file).exists():
                raise UserError(f"{folder / file} is missing: copy the node's whole folder, or use --insecure")
        words += ["--root-certificates", str(folder / "ca.crt"), "--auth-supernode-private-key", str(folder / "key")]
    port, home = free_port(), folder / "flower"
    home.mkdir(exist_ok=True)
    make_clock(home)
    new_secret(home / "executor.secret")
    words += ["--host", "127.0.0.1", "--port", str(port)]
    words += ["--isolation", "process", "--superexec-auth-secret-file", str(home / "executor.secret")]
    facts = {"name": node["name"], "data": data, "capacity": capacity, "folder": folder}
    facts |= {"device": node.get("device", "auto"), "threads": threads, "code": ",".join(code_of(node))}
    words += ["--node-config", " ".join(f"{k}={quoted(str(v))}" for k, v in facts.items())]
    executor = [sys.executable, "-m", "pa3dfl.deploy.executor", "node"]
    executor += [f"127.0.0.1:{port}", str(home / "executor.secret")]
    both = supervised(words, executor)
    os.execve(both[0], both, environment() | {"FLWR_HOME": str(home)})


def code_of(node: dict[str, Any]) -> list[str]:
    code = node.get("code") or []
    if not isinstance(code, list) or not all(isinstance(name, str) and ":" in name for name in code):
        raise UserError(f"code in node.yaml is {code!r}: expected a list of package.module:name")
    return code


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def quoted(text: str) -> str:
    if any(c in text for c in "\"'\n\\"):
        raise UserError(f"{text!r}: Flower accepts no quotes, backslashes and line breaks here")
    return f'"{text}"'
