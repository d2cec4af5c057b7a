"""Nodes that join, leave or change during a training."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import CAPACITIES, SMALL, records
from machines import Machines

from pa3dfl.deploy import server
from pa3dfl.deploy.node import RealNode


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train_with_a_late_node(machines: Machines, first: str = "train") -> None:
    """The third node comes when the first order of that kind goes out."""
    late = machines.here.pop(102)

    def before(node: int, order: dict[str, Any]) -> None:
        if order["kind"] == first:
            machines.here[102] = late

    machines.before = before
    machines.train(wait_for=2)


def test_a_node_that_comes_late_takes_part(tmp_path: Path) -> None:
    """Two of three clients are registered at the start; the third node comes in round 1 and trains from then on."""
    machines = Machines(tmp_path, CAPACITIES, method="pa3dfl", per_round=3, **SMALL["pa3dfl"])
    train_with_a_late_node(machines)
    taken = [r["participants"] for r in records(machines.deployment.run)]
    assert taken[0] == [0, 1]
    assert taken[-1] == [0, 1, 2]
    assert "node-2 came later and is client 2" in machines.deployment.log.read_text()
    assert (machines.deployment.nodes / "node-2" / "model.json").exists()


@pytest.mark.parametrize(
    "method", ["pa3dfl", "flanc", "tailorfl", "heterofl", "fjord", "fedrolex", "lg-fedavg", "local-only"]
)
def test_a_node_that_comes_after_a_test_may_have_a_width_of_its_own(method: str, tmp_path: Path) -> None:
    """A node joins in the test after round 2, is tested after round 3, trains in round 4, and in 5 after a restart."""
    machines = Machines(tmp_path, CAPACITIES, method=method, per_round=3, rounds=4, patience=9, **SMALL.get(method, {}))
    train_with_a_late_node(machines, "test")
    machines.configure(rounds=5)
    machines.train(resume=True)
    made = records(machines.deployment.run)
    assert [r["participants"] for r in made] == [[0, 1]] * 3 + [[0, 1, 2]] * 2
    assert [r["rejected"] for r in made] == [[]] * 5
    assert [r.get("untested") for r in made] == [None, [], None, [], []]
    with (machines.deployment.run / "clients.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert [(r["client"], r["width"]) for r in rows] == [("0", "1"), ("1", "1/2"), ("2", "1/4")]
    assert float(rows[0]["share"]) > float(rows[1]["share"]) > float(rows[2]["share"])


def test_a_node_with_another_capacity_keeps_its_width(tmp_path: Path) -> None:
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", per_round=3, rounds=1)
    machines.train()
    machines.here[100]["capacity"] = "1/16"
    machines.configure(rounds=2)
    machines.train(resume=True)
    assert "node-0 has capacity 1/16 now: in this run it keeps the width of 1" in machines.deployment.log.read_text()
    assert [r["rejected"] for r in records(machines.deployment.run)] == [[], []]


def test_added_rows_count_from_the_next_answer_on(tmp_path: Path) -> None:
    """The file of a node is replaced before it trains in round 2."""
    machines = Machines(tmp_path, CAPACITIES, method="ditto", per_round=3)

    def before(node: int, order: dict[str, Any]) -> None:
        if (node, order["kind"], order.get("round")) == (101, "train", 2):
            with np.load("node-1.npz") as f:
                np.savez("node-1.npz", x=np.concatenate([f["x"]] * 2), y=np.concatenate([f["y"]] * 2))

    machines.before = before
    machines.train()
    made = records(machines.deployment.run)
    assert [(r["participants"], r["rejected"]) for r in made] == [([0, 1, 2], [])] * 3
    saved = json.loads(machines.deployment.registrations.read_text())["registrations"]
    [few, many, _] = [s["sizes"][0] for s in saved]
    assert many > few
    log = machines.deployment.log.read_text()
    assert log.count(f"node-1 has {many} training rows now, before {few}") == 1
    machines.configure(rounds=4)
    machines.train(resume=True)
    assert records(machines.deployment.run)[-1]["rejected"] == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"sizes": [9, 4, 4], "capacity": "1"}, "claims 32 training rows, declared 9"),
        ({"sizes": [0, 4, 4], "capacity": "1"}, "sizes are [0, 4, 4], expected three whole numbers from 1"),
        ({"sizes": [24, 4, 4], "capacity": 7}, "capacity is '7', expected a printable text"),
    ],
)
def test_false_numbers_of_rows_are_refused(
    said: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", per_round=3, rounds=1)
    honest = RealNode.present

    def lie(node: RealNode) -> dict[str, Any]:
        training = any(order["kind"] == "train" for _, order in machines.orders)
        return said if training and node.node["name"] == "node-1" else honest(node)

    monkeypatch.setattr(RealNode, "present", lie)
    machines.train()
    [record] = records(machines.deployment.run)
    assert record["rejected"] == [{"client": 1, "reason": reason}]


@pytest.mark.parametrize("method", ["pa3dfl", "tailorfl", "lg-fedavg", "fedavg"])
def test_a_client_number_passes_to_another_node(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 0's key is unregistered in round 2. A node of another name and width comes, without any state."""
    machines = Machines(
        tmp_path, CAPACITIES, method=method, per_round=3, eval_every=1, timeout=1.0, patience=9, **SMALL.get(method, {})
    )
    monkeypatch.setattr(server, "left", lambda deployment, node: node not in machines.here)
    heir = machines.node(0, "1/16", name="heir", folder=str(tmp_path / "heir"))

    def before(node: int, order: dict[str, Any]) -> None:
        if (order["kind"], order.get("round")) == ("train", 2):
            machines.here.pop(100, None)
            machines.here[103] = heir

    machines.before = before
    machines.train()
    machines.configure(rounds=4)
    machines.train(resume=True)
    made = records(machines.deployment.run)
    assert [r["rejected"] for r in made] == [[]] * 4
    assert [r["participants"] for r in made] == [[0, 1, 2], [1, 2], [0, 1, 2], [0, 1, 2]]
    assert {r["client"] for r in csv.DictReader((machines.deployment.run / "clients.csv").open())} == {"0", "1", "2"}
    assert (tmp_path / "heir" / "model.json").exists()


def test_a_name_passes_to_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same node with a new key: its width and its state stay."""
    machines = Machines(tmp_path, CAPACITIES, method="ditto", per_round=3, rounds=2)
    machines.train()
    machines.here[103] = machines.here.pop(101)
    machines.configure(rounds=3)
    monkeypatch.setattr(server, "left", lambda deployment, node: node not in machines.here)
    machines.train(resume=True)
    [last] = [o for node, o in machines.orders if node == 103 and o["kind"] == "train"]
    assert (last["client"], last["receipt"]) == (1, 2)
    assert records(machines.deployment.run)[-1]["rejected"] == []


def test_a_late_node_with_rows_of_another_kind_stays_out(tmp_path: Path) -> None:
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", per_round=3)
    with np.load("node-2.npz") as f:
        np.savez("node-2.npz", x=f["x"].astype(np.float32), y=f["y"])
    train_with_a_late_node(machines)
    assert [r["participants"] for r in records(machines.deployment.run)] == [[0, 1]] * 3
    assert "its rows are floats, those of the others are not" in machines.deployment.log.read_text()


def test_a_late_node_that_would_narrow_everybody_stays_out(tmp_path: Path) -> None:
    machines = Machines(tmp_path, ["1", "1/4", "1/256"], method="fedavg", per_round=3)
    train_with_a_late_node(machines)
    assert [r["participants"] for r in records(machines.deployment.run)] == [[0, 1]] * 3
    assert "it affords less than the width 1/2 at which all others train" in machines.deployment.log.read_text()
