"""A deployment without its processes: the real server and real nodes, with Flower's messages handed over in memory."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml
from flwr.app import Message

from conftest import make_arrays
from pa3dfl.deploy.folder import DeploymentFolder
from pa3dfl.deploy.init import init
from pa3dfl.deploy.node import on_message
from pa3dfl.deploy.server import serve
from pa3dfl.engines.flower.engine import content
from postbox import Postbox

OPTIONS = {
    "model": "cnn-fashion", "rounds": 3, "eval_every": 2, "epochs": 1, "batch": 10, "lr": 0.05, "threads": 1,
    "device": "cpu", "per_round": 2, "timeout": 60.0, "data": "all.npz",
}  # fmt: skip


def write_data(folder: Path, nodes: int = 3, rows: int = 120) -> None:
    """all.npz with owners, and each owner's rows in a file of its own."""
    arrays = make_arrays(rows)
    owner = np.array([f"node-{i}" for i in range(nodes)])[np.arange(rows) * 7 % nodes]
    np.savez(folder / "all.npz", x=arrays.x, y=arrays.y, client=owner)
    for name in np.unique(owner):
        np.savez(folder / f"{name}.npz", x=arrays.x[owner == name], y=arrays.y[owner == name])


class Machines(Postbox):
    """A site and its nodes. `before` sees every order just before it is answered, and may change who is here."""

    def __init__(self, folder: Path, capacities: list[str], **options: Any) -> None:
        super().__init__()
        self.folder, self.deployment = folder, DeploymentFolder(folder / "site")
        write_data(folder, len(capacities))
        init(self.deployment, len(capacities), "127.0.0.1", 9093, False, OPTIONS | options)
        self.here = {100 + i: self.node(i, c) for i, c in enumerate(capacities)}
        self.before: Callable[[int, dict[str, Any]], None] = lambda node, order: None
        self.orders: list[tuple[int, dict[str, Any]]] = []

    def node(self, i: int, capacity: str, **changes: Any) -> dict[str, Any]:
        folder = self.deployment.nodes / f"node-{i}"
        data = str(self.folder / f"node-{i}.npz")
        said = {"name": f"node-{i}", "data": data, "capacity": capacity, "folder": str(folder)}
        return said | {"device": "cpu", "threads": "0"} | changes

    def configure(self, **changes: Any) -> None:
        values = yaml.safe_load(self.deployment.config.read_text())
        self.deployment.config.write_text(yaml.safe_dump(values | changes))

    def get_node_ids(self) -> list[int]:
        return list(self.here)

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        replies = []
        for message in self.sent(ids):
            node, order = message.metadata.dst_node_id, content(message)[0]
            self.before(node, order)
            if node in self.here:
                self.orders.append((node, order))
                context: Any = SimpleNamespace(node_config=self.here[node])
                replies.append(on_message(message, context))
        return replies

    def train(self, resume: bool = False, wait_for: int = 0, patience: float = 0.0, join: bool = False) -> None:
        self.deployment.ticket.write_text("mine")
        given = {"folder": str(self.deployment.path), "ticket": "mine", "resume": resume}
        self.serve(given | {"join": join, "wait-for": wait_for, "patience": patience})

    def serve(self, given: dict[str, Any]) -> None:
        context: Any = SimpleNamespace(run_config=given)
        grid: Any = self
        serve(grid, context)
