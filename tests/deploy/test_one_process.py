"""A deployment in one process: the same bits as on one machine, and what each side keeps and says."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import CAPACITIES, SMALL, alone, records, same, saved, state
from machines import Machines
from safetensors.torch import load_file

from pa3dfl import cli
from pa3dfl.core.errors import UserError


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("method", ["pa3dfl", "ditto", "heterofl", "local-only", "pfedgate", "pfedhn", "tailorfl"])
def test_same_bits_as_on_one_machine(method: str, tmp_path: Path) -> None:
    """Every node has only its own file; the server has no data at all."""
    chosen = {"method": method} | SMALL.get(method, {})
    machines = Machines(tmp_path, CAPACITIES, **chosen)
    machines.train()
    one, run = alone(**chosen), machines.deployment.run
    assert records(one) == records(run)
    assert (one / "clients.csv").read_text() == (run / "clients.csv").read_text()
    a, b = saved(one), saved(run)
    assert same(a.server, b.server)
    assert a.private.keys() == b.private.keys()
    for i, receipt in b.private.items():
        assert same(a.private[i], load_file(state(machines, i) / f"private.{int(receipt['round'])}.safetensors"))


@pytest.mark.parametrize("method", ["pa3dfl", "ditto", "pfedgate", "local-only", "tailorfl"])
def test_every_node_can_use_its_model(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`predict` has the accuracy on a node's test rows that the federation counted."""
    machines = Machines(tmp_path, CAPACITIES, method=method, **SMALL.get(method, {}))
    machines.train()
    rows = list(csv.DictReader((machines.deployment.run / "clients.csv").open()))
    for i, row in enumerate(rows):
        folder = machines.deployment.nodes / f"node-{i}"
        card = json.loads((folder / "model.json").read_text())
        assert card["test_accuracy"] == float(row["test_accuracy"])
        own = np.load(tmp_path / f"node-{i}.npz")
        from pa3dfl.data import split_one

        test = split_one(i, np.arange(len(own["y"])), 0).test
        np.savez(tmp_path / "test.npz", x=own["x"][test], y=own["y"][test])
        assert cli.main(["predict", str(folder), "test.npz", "--json", "--out", "said.npz"]) == 0
        out = json.loads(capsys.readouterr().out)
        assert out["accuracy"] == pytest.approx(card["test_accuracy"])
        assert np.load("said.npz")["probability"].shape == (len(test), 4)
        assert cli.main(["export", str(folder), "--json"]) == 0
        [record] = json.loads(capsys.readouterr().out)
        assert record["file_accuracy"] == card["test_accuracy"]
        assert cli.main(["predict", record["path"], "test.npz", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(card["test_accuracy"])
    (tmp_path / "node-0.npz").unlink()
    assert cli.main(["export", str(machines.deployment.nodes / "node-0")]) == 2
    assert "model was tested are not at" in capsys.readouterr().err


def test_a_damaged_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("rows.npz", x=np.zeros((4, 1, 8, 8), np.uint8), y=np.arange(4))
    (tmp_path / "model.json").write_text("{}")
    for model, reason in (("nowhere", "cannot be read"), ("model.json", "is not a personal model"), (".", "is not a")):
        assert cli.main(["predict", model, "rows.npz"]) == 2
        assert reason in capsys.readouterr().err


def test_a_node_that_leaves_is_missing_and_continues_when_it_returns(tmp_path: Path) -> None:
    """Node 1 is away in round 2 and back in round 3, with its private state."""
    machines = Machines(tmp_path, CAPACITIES, method="ditto", per_round=3, timeout=1.0)
    away = machines.here[101]

    def before(node: int, order: dict[str, Any]) -> None:
        if (order["kind"], order.get("round")) == ("train", 2):
            machines.here.pop(101, None)
        if (order["kind"], order.get("round")) == ("test", 2):
            machines.here[101] = away

    machines.before = before
    machines.train()
    assert [(r["participants"], r["missing"]) for r in records(machines.deployment.run)] == [
        ([0, 1, 2], []), ([0, 2], [1]), ([0, 1, 2], []),
    ]  # fmt: skip
    third = [order for _, order in machines.orders if order["kind"] == "train" and order["round"] == 3]
    assert {o["client"]: o["receipt"] for o in third} == {0: 2, 1: 1, 2: 2}


def test_a_round_without_answers_ends_the_training(tmp_path: Path) -> None:
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", timeout=0.5)

    def before(node: int, order: dict[str, Any]) -> None:
        if order["kind"] == "train" and order["round"] == 2:
            machines.here.clear()

    machines.before = before
    with pytest.raises(UserError, match="round 2: none of 2 clients answered; 1 round is kept"):
        machines.train()
    outcome = json.loads(machines.deployment.outcome.read_text())
    assert outcome == {"ticket": "mine", "ok": False, "line": "round 2: none of 2 clients answered; 1 round is kept"}
