"""The start of a deployment's training: which nodes may take part, which are refused, and what is printed."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import CAPACITIES, records
from machines import Machines

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.deploy.capacity import check_capacity, share_of
from pa3dfl.deploy.launcher import said as line_of
from pa3dfl.methods.assembly import configure


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_too_few_nodes_end_the_wait(tmp_path: Path) -> None:
    machines = Machines(tmp_path, CAPACITIES)
    del machines.here[101]
    with pytest.raises(UserError, match="2 of 3 nodes came within 0 s"):
        machines.train()


def test_a_name_belongs_to_one_node(tmp_path: Path) -> None:
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=1)
    machines.here[103] = machines.here[102] | {"folder": str(tmp_path / "thief")}
    machines.train()
    assert "a node was refused: the name 'node-2' is taken" in machines.deployment.log.read_text()
    assert {node for node, order in machines.orders if order["kind"] == "train"} <= {100, 101, 102}


def test_nodes_with_rows_of_different_kinds_are_refused(tmp_path: Path) -> None:
    machines = Machines(tmp_path, CAPACITIES)
    np.savez("node-1.npz", x=np.zeros((9, 1, 9, 9), np.uint8), y=np.arange(9) % 4)
    with pytest.raises(UserError, match="nodes have rows of different kinds"):
        machines.train()


def test_a_full_disk_on_a_node_is_a_rejection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pa3dfl.engines.flower import state_store

    machines = Machines(tmp_path, CAPACITIES, method="ditto", per_round=3, rounds=1)
    real = state_store.write_tensors

    def full(path: Path, tree: Tree, durable: bool) -> None:
        if "node-1" in str(path):
            raise OSError(28, "No space left on device")
        real(path, tree, durable)

    monkeypatch.setattr(state_store, "write_tensors", full)
    machines.train()
    [record] = records(machines.deployment.run)
    assert record["participants"] == [0, 2]
    assert "No space left on device" in record["rejected"][0]["reason"]


def test_a_training_starts_once(tmp_path: Path) -> None:
    """A restarted SuperLink starts unfinished runs again: that must not change the run's files."""
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=1)
    machines.train()
    before = (machines.deployment.run / "rounds.jsonl").read_text()
    given = {"folder": str(machines.deployment.path), "ticket": "mine", "resume": False, "wait-for": 0, "patience": 0.0}
    with pytest.raises(UserError, match="this training was started before"):
        machines.serve(given)
    assert (machines.deployment.run / "rounds.jsonl").read_text() == before


def test_a_capacity_as_a_share_or_as_a_budget() -> None:
    config = configure({"method": "fedavg", "model": "cnn-fashion", "p_min": "1/4"})
    assert share_of("1/4", config, (1, 28, 28), 10) == share_of("25%", config, (1, 28, 28), 10)
    small, large = (share_of(text, config, (1, 28, 28), 10) for text in ("1MB", "2MB"))
    assert 0 < small < large < 1
    assert share_of("1GB", config, (1, 28, 28), 10) == share_of("100Gmac", config, (1, 28, 28), 10) == 1
    assert share_of("100Mmac", config, (1, 28, 28), 10) < 1
    with pytest.raises(UserError, match="below the narrowest model"):
        share_of("1kB", config, (1, 28, 28), 10)
    with pytest.raises(UserError, match="or a budget such as 20MB"):
        check_capacity("20 apples")


def test_the_line_of_a_round() -> None:
    record = {
        "round": 2, "participants": [0, 3], "missing": [1], "rejected": [{"client": 2, "reason": "norm 1e+30"}],
        "train_loss": 1.25, "test_accuracy": 0.5, "untested": [1], "seconds": 3.2,
    }  # fmt: skip
    assert line_of(record, 9, {1: "node-1", 2: "node-2"}) == (
        "round 2/9: 2 answered, missing node-1, rejected node-2: norm 1e+30, loss 1.250, accuracy 50.0%, "
        "not tested node-1, 3 s"
    )
