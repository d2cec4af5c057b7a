"""Deployed federations of three nodes beside the same on one machine."""

import json
from pathlib import Path
from typing import Any

import torch
from machines import OPTIONS, Machines

from pa3dfl.core.tree import Tree
from pa3dfl.experiments import api
from pa3dfl.federation.checkpoint import Checkpoints

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
