"""The state of a deployment: its nodes, as the server lists them, and its training, as its files record it."""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from pa3dfl.core.errors import UserError
from pa3dfl.deploy.control_client import ControlClient
from pa3dfl.deploy.folder import DeploymentFolder
from pa3dfl.deploy.membership import key_names
from pa3dfl.runs.format import RunDirectory

RECENT = 20
"""How many rounds the mean time of a round covers."""


@dataclass(frozen=True)
class Node:
    name: str
    state: str
    """Flower's state of the node: registered (never seen), online or offline."""
    client: int | None
    last_round: int | None


@dataclass(frozen=True)
class Status:
    site: str
    server: str
    state: str
    """idle (never trained), training, finished or stopped."""
    line: str | None
    """How the last training ended."""
    rounds_done: int
    rounds: int
    accuracy: float | None
    """The mean test accuracy at the last evaluation."""
    train_loss: float | None
    nodes: list[Node]
    missing: list[str]
    """The nodes that are not connected, or did not answer in the last round."""
    rejected: list[str]
    """The nodes whose update was rejected in the last round."""
    rejected_updates: int
    """All rejected updates of this run."""
    bytes_down: int
    bytes_up: int
    seconds_per_round: float | None
    seconds_left: float | None

    @property
    def online(self) -> int:
        return sum(n.state == "online" for n in self.nodes)

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def status(deployment: DeploymentFolder) -> Status:
    settings = deployment.settings()
    try:
        with closing(ControlClient(deployment)) as control:
            found = control.list_nodes()
    except UserError as e:
        raise UserError(f"no status: {e}; `pa3dfl deploy server {deployment.path}` starts the server") from None
    directory = RunDirectory(deployment.run)
    records = directory.read_rounds() if directory.rounds.exists() else []
    began = directory.config.exists()
    config = directory.read_config() if began else {}
    rounds = int(config.get("rounds") or 0)
    training = deployment.is_training()
    ended = _ended(deployment)
    done = records[-1]["round"] if records else 0
    state = "training" if training else "idle" if not began else "finished" if ended.get("ok") else "stopped"
    names = client_names(deployment)
    by_id = {s["node"]: i for i, s in registrations(deployment).items()}
    by_name = {name: i for i, name in names.items()}  # a node with a new key has another id
    keys = {} if settings["insecure"] else key_names(deployment)
    seen = {i: r["round"] for r in records for i in r["participants"]}
    nodes = []
    for n in found:
        client = by_id.get(n.node_id, by_name.get(keys.get(n.public_key, "")))
        name = keys.get(n.public_key, str(n.node_id)) if client is None else names[client]
        nodes.append(Node(name, str(n.status), client, None if client is None else seen.get(client)))
    silent = [names.get(i, str(i)) for i in records[-1]["missing"]] if records and training else []
    away = [n.name for n in nodes if n.state != "online"]
    tested = [r["test_accuracy"] for r in records if r.get("test_accuracy") is not None]
    recent = [r["seconds"] for r in records[-RECENT:]]
    left = None
    if training and records:
        left = seconds_left(records, rounds, int(config["eval_every"]), time.time() - directory.rounds.stat().st_mtime)
    return Status(
        site=str(deployment.path),
        server=deployment.address(),
        state=state,
        line=ended.get("line") if not training else None,
        rounds_done=done,
        rounds=rounds,
        accuracy=tested[-1] if tested else None,
        train_loss=records[-1]["train_loss"] if records else None,
        nodes=sorted(nodes, key=lambda n: (n.client is None, n.client or 0, n.name)),
        missing=sorted({*silent, *away}),
        rejected=[names.get(r["client"], str(r["client"])) for r in records[-1]["rejected"]] if records else [],
        rejected_updates=sum(len(r["rejected"]) for r in records),
        bytes_down=sum(r["bytes_down"] for r in records),
        bytes_up=sum(r["bytes_up"] for r in records),
        seconds_per_round=sum(recent) / len(recent) if recent else None,
        seconds_left=left,
    )


def seconds_left(records: Sequence[dict[str, Any]], rounds: int, eval_every: int, since: float) -> float:
    """The expected time until the end, `since` seconds after the last record. Rounds with a test take longer."""
    recent = records[-max(RECENT, 2 * eval_every) :]
    by_kind = {kind: [r["seconds"] for r in recent if ("test_accuracy" in r) is kind] for kind in (True, False)}
    every = [r["seconds"] for r in recent]
    left = 0.0
    for rnd in range(records[-1]["round"] + 1, rounds + 1):
        like = by_kind[rnd % eval_every == 0 or rnd == rounds] or every
        left += sum(like) / len(like)
    return max(0.0, left - since)


def registrations(deployment: DeploymentFolder) -> dict[int, dict[str, Any]]:
    """The registrations of the current run's nodes, by client number."""
    try:
        saved = json.loads(deployment.registrations.read_text())["registrations"]
    except (OSError, ValueError, KeyError):
        return {}
    return {i: s for i, s in enumerate(saved) if s}


def client_names(deployment: DeploymentFolder) -> dict[int, str]:
    return {i: s["name"] for i, s in registrations(deployment).items()}


def _ended(deployment: DeploymentFolder) -> dict[str, Any]:
    """How the last training ended; empty if it was killed, or none has ended yet."""
    try:
        found = json.loads(deployment.outcome.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
