"""Deployed federations of three nodes beside the same on one machine."""

import json
from pathlib import Path
from typing import Any

import torch
from machines import OPTIONS, Machines

from pa3dfl.core.tree import Tree
from pa3dfl.data import load
from pa3dfl.engines import Round
from pa3dfl.engines.sequential import Sequential
from pa3dfl.experiments import api
from pa3dfl.federation.checkpoint import Checkpoints
from pa3dfl.methods import assembly

CAPACITIES = ["1", "1/4", "1/16"]
SMALL = {"pa3dfl": {"embedding": 4, "hidden": 4}}


def saved(path: Path) -> Any:
    return Checkpoints(path / "checkpoints").load(torch.device("cpu"))


def same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def records(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if k != "seconds"} for r in lines]


def state(machines: Machines, i: int) -> Path:
    token = json.loads(machines.deployment.registrations.read_text())["token"]
    return machines.deployment.nodes / f"node-{i}" / "state" / token


def alone(**changes: Any) -> Path:
    api.run(**(OPTIONS | {"setting": f"list:{','.join(CAPACITIES)}", "out": "one", "engine": "sequential"} | changes))
    return Path("one")


def survivors(folder: Path, capacities: list[str], missing: list[list[int]]) -> tuple[Tree, dict[int, Tree]]:
    """The server's and the clients' state after rounds of Ditto in which these clients were missing."""
    settings = {"method": "ditto", "setting": f"list:{','.join(capacities)}", "clients": len(capacities)}
    config = assembly.configure(OPTIONS | settings | {"data": str(folder / "all.npz"), "engine": "sequential"})
    torch.set_num_threads(1)
    method = assembly.make_method(config)
    task = assembly.make_task(config, method, load(config.data))
    server, private = method.init_server(task), {}
    for rnd, dead in enumerate(missing, 1):
        updates = Sequential().train(Round(method, task, server, private, task.clients, rnd))
        updates = [u for u in updates if u.client.id not in dead]
        private |= {u.client.id: u.private for u in updates}
        server = method.aggregate(task, server, updates, rnd)
    return server, private
