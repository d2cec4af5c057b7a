"""An app that leaves a file wherever its code runs, and a server that was taken over and sends it to its nodes."""

import hashlib
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from live import Live

from pa3dfl.deploy.folder import program
from pa3dfl.deploy.task_runner import Link

PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "rogue"
version = "1.0.0"
description = "x"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "rogue.server:app"
clientapp = "rogue.client:app"
[tool.flwr.app.config]
"""
CODE = """from pathlib import Path
Path({marker!r}).with_suffix(".{side}").write_text("was here")
from flwr.{side}app import {Side}App
app = {Side}App()
"""
SERVER = """
@app.main()
def main(grid, context):
    pass
"""
CLIENT = """
from flwr.app import Message
@app.query()
def query(message, context):
    return Message(message.content, reply_to=message)
"""


def write(folder: Path, marker: Path) -> Path:
    (folder / "rogue").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "rogue" / "__init__.py").write_text("")
    for side, rest in (("server", SERVER), ("client", CLIENT)):
        code = CODE.format(marker=str(marker), side=side, Side=side.capitalize()) + rest
        (folder / "rogue" / f"{side}.py").write_text(code)
    return folder


def bundle(folder: Path) -> bytes:
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(folder)


@contextmanager
def taken_over(live: Live) -> Iterator["TakenOver"]:
    """Flower's own SuperLink with the certificates, keys and port of the server that was there."""
    files = live.deployment.certificates
    words = [program("flower-superlink"), "--host", "0.0.0.0", "--port", str(live.port), "--isolation", "process"]
    words += ["--ssl-ca-certfile", str(files / "ca.crt"), "--ssl-certfile", str(files / "server.crt")]
    words += ["--ssl-keyfile", str(files / "server.key"), "--enable-supernode-auth"]
    words += ["--database", str(live.folder / "superlink.copy.db"), "--disable-runtime-dependency-installation"]
    for left in live.folder.glob("superlink.copy.db*"):  # with the journal of a server that was killed
        left.unlink()
    with sqlite3.connect(live.deployment.path / "superlink.db") as db:  # it knows the nodes
        db.execute("VACUUM INTO ?", (str(live.folder / "superlink.copy.db"),))
    live.execute("taken over", words, FLWR_HOME=str(live.folder / "thief"))
    try:
        yield TakenOver(live)
    finally:
        live.kill("taken over")


class TakenOver:
    def __init__(self, live: Live) -> None:
        self.live, self.link = live, Link(f"127.0.0.1:{live.port}", live.deployment.ca().read_bytes())
        self.control = ControlHttpClient.from_server_address(self.link.address, False, self.link.root, [])

    def run(self, app: bytes, swap: bytes | None = None) -> HttpGrid:
        """Start a run of an app; with `swap`, what the nodes get under its hash is something else."""
        deadline = time.monotonic() + 60
        request = StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(app).hexdigest(), app, {})))
        while True:
            try:
                run = self.control.StartRun(request).run_id
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline, self.live.log("taken over")
                time.sleep(0.5)
        if swap is not None:
            with sqlite3.connect(self.live.folder / "superlink.copy.db") as db:
                changed = db.execute(
                    "UPDATE fab SET content = ? WHERE fab_hash = ?", (swap, hashlib.sha256(app).hexdigest())
                )
                assert changed.rowcount == 1
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        while True:
            got = self.link.client("thief").AcquireTask(wanted)
            assert got.token, "the run's task is not there"
            if got.task.run_id == run:
                break
        grid = HttpGrid(self.link.address, False, self.link.root, token=got.token)
        given = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = context_from_proto(given.context).node_id
        grid.set_run(run_from_proto(given.run))
        return grid


def ask(grid: HttpGrid, messages: list[Message], seconds: float = 60) -> list[Message]:
    waiting, replies = set(grid.push_messages(messages)), []
    deadline = time.monotonic() + seconds
    while waiting and time.monotonic() < deadline:
        for reply in grid.pull_messages(list(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            replies.append(reply)
        time.sleep(0.3)
    return replies


def resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def flwr(home: Path, live: Live, address: str, token: str | None = None) -> dict[str, str]:
    """Flower's own command line, told of our server as `site`, perhaps holding a token."""
    from base64 import b64encode

    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink.site]\naddress = "{address}"\nroot-certificates = "{live.deployment.ca()}"\n'
    )
    if token is not None:
        kept = {"authn-type": "oidc", "oidc-access-token": token, "oidc-refresh-token": token}
        lines = [f"flower.account-auth.{address}.{k}: {b64encode(v.encode()).decode()}" for k, v in kept.items()]
        (home / "credentials.yaml").write_text("\n".join(lines) + "\n")
    return {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def alive(live: Live, name: str) -> bool:
    process: subprocess.Popen[bytes] = live.running[name]
    return process.poll() is None
