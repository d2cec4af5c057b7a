"""A deployment in one process: the same bits as on one machine, and what each side keeps and says."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from machines import OPTIONS, Machines
from safetensors.torch import load_file

from pa3dfl import api, cli
from pa3dfl.assembly import configure
from pa3dfl.checkpoint import Store
from pa3dfl.deploy.capacity import check_capacity, share_of
from pa3dfl.deploy.control import said
from pa3dfl.errors import UserError
from pa3dfl.tree import Tree

CAPACITIES = ["1", "1/4", "1/16"]
SMALL = {"pa3dfl": {"embedding": 4, "hidden": 4}}


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved(path: Path) -> Any:
    return Store(path / "checkpoints").load(torch.device("cpu"))


def same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def records(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if k != "seconds"} for r in lines]


def state(machines: Machines, i: int) -> Path:
    token = json.loads(machines.site.seats.read_text())["token"]
    return machines.site.nodes / f"node-{i}" / "state" / token


def alone(**changes: Any) -> Path:
    api.run(**(OPTIONS | {"setting": f"list:{','.join(CAPACITIES)}", "out": "one", "engine": "sequential"} | changes))
    return Path("one")


@pytest.mark.parametrize("method", ["pa3dfl", "ditto", "heterofl", "local-only", "pfedgate", "pfedhn", "tailorfl"])
def test_same_bits_as_on_one_machine(method: str, tmp_path: Path) -> None:
    """Every node has only its own file; the server has no data at all."""
    chosen = {"method": method} | SMALL.get(method, {})
    machines = Machines(tmp_path, CAPACITIES, **chosen)
    machines.train()
    one, run = alone(**chosen), machines.site.run
    assert records(one) == records(run)
    assert (one / "clients.csv").read_text() == (run / "clients.csv").read_text()
    a, b = saved(one), saved(run)
    assert same(a.server, b.server)
    assert a.private.keys() == b.private.keys()
    for i, receipt in b.private.items():
        assert same(a.private[i], load_file(state(machines, i) / f"private.{int(receipt['round'])}.safetensors"))


@pytest.mark.parametrize("method", ["pa3dfl", "ditto", "pfedgate", "local-only", "tailorfl"])
def test_every_node_can_use_its_model(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`predict` says of a node's test rows what the federation counted."""
    machines = Machines(tmp_path, CAPACITIES, method=method, **SMALL.get(method, {}))
    machines.train()
    rows = list(csv.DictReader((machines.site.run / "clients.csv").open()))
    for i, row in enumerate(rows):
        folder = machines.site.nodes / f"node-{i}"
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


def test_a_model_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("rows.npz", x=np.zeros((4, 1, 8, 8), np.uint8), y=np.arange(4))
    (tmp_path / "model.json").write_text("{}")
    for model, reason in (("nowhere", "cannot be read"), ("model.json", "is not a personal model"), (".", "is not a")):
        assert cli.main(["predict", model, "rows.npz"]) == 2
        assert reason in capsys.readouterr().err


def test_who_goes_is_missing_and_who_comes_back_goes_on(tmp_path: Path) -> None:
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
    assert [(r["participants"], r["missing"]) for r in records(machines.site.run)] == [
        ([0, 1, 2], []), ([0, 2], [1]), ([0, 1, 2], []),
    ]  # fmt: skip
    third = [order for _, order in machines.orders if order["kind"] == "train" and order["round"] == 3]
    assert {o["client"]: o["receipt"] for o in third} == {0: 2, 1: 1, 2: 2}


def test_nobody_answers(tmp_path: Path) -> None:
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", timeout=0.5)

    def before(node: int, order: dict[str, Any]) -> None:
        if order["kind"] == "train" and order["round"] == 2:
            machines.here.clear()

    machines.before = before
    with pytest.raises(UserError, match="round 2: none of 2 clients answered; 1 rounds are kept"):
        machines.train()
    outcome = json.loads(machines.site.outcome.read_text())
    assert outcome == {"ticket": "mine", "ok": False, "line": "round 2: none of 2 clients answered; 1 rounds are kept"}


@pytest.mark.parametrize("method", ["pa3dfl", "ditto"])
def test_resume_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    """Everybody falls silent in the middle of round 2; the next server goes on from round 1."""
    chosen = {"method": method} | SMALL.get(method, {})
    machines = Machines(tmp_path, CAPACITIES, **chosen, timeout=0.5)
    everybody = dict(machines.here)

    def before(node: int, order: dict[str, Any]) -> None:
        if order["kind"] == "train" and order["round"] == 2 and len(machines.orders) > 5:
            machines.here.clear()

    machines.before = before
    with pytest.raises(UserError):
        machines.train()
    machines.before, machines.here = lambda *_: None, everybody
    machines.train(resume=True)
    one = alone(**chosen)
    assert records(one) == records(machines.site.run)
    assert same(saved(one).server, saved(machines.site.run).server)


def test_a_stranger_at_resume_stays_out(tmp_path: Path) -> None:
    """All seats are taken by the run that goes on; another node is there, and another key under a known name."""
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=2)
    machines.train()
    machines.configure(rounds=3)
    machines.here[200] = machines.node(0, "1", name="stranger")
    machines.here[201] = machines.here.pop(102)  # node-2's name with another of Flower's numbers
    machines.train(resume=True, wait_for=2)
    assert [r["round"] for r in records(machines.site.run)] == [1, 2, 3]
    assert "the name 'node-2' belongs to another key" in machines.site.log.read_text()
    asked = {node for node, order in machines.orders if order["kind"] == "train" and order["round"] == 3}
    assert asked <= {100, 101}
    machines.configure(lr=0.5)
    with pytest.raises(UserError, match="has changed since the run began: only rounds and timeout may"):
        machines.train(resume=True)


class Killed(BaseException):
    pass


def test_a_server_killed_ten_times(tmp_path: Path) -> None:
    """At random moments of a run: each time at most the running round is lost, and the end has the same bits."""
    machines = Machines(tmp_path, CAPACITIES, method="ditto", rounds=8, eval_every=4)
    rng, kills, left = random.Random(0), 0, 0

    def before(node: int, order: dict[str, Any]) -> None:
        nonlocal left
        left -= order["kind"] != "who"
        if left < 0 and kills < 10:
            raise Killed

    machines.before = before
    while True:
        left, kept = rng.randint(0, 4), len(records(machines.site.run)) if machines.site.run.exists() else 0
        try:
            machines.train(resume=machines.site.run.exists())
            break
        except Killed:
            kills += 1
            assert len(records(machines.site.run)) >= kept
    assert kills == 10
    one = alone(method="ditto", rounds=8, eval_every=4)
    assert records(one) == records(machines.site.run)
    assert same(saved(one).server, saved(machines.site.run).server)
    for i, tree in saved(one).private.items():
        receipt = int(saved(machines.site.run).private[i]["round"])
        assert same(tree, load_file(state(machines, i) / f"private.{receipt}.safetensors"))


def train_with_a_late_node(machines: Machines) -> None:
    """The third node comes when the first order to train goes out."""
    late = machines.here.pop(102)

    def before(node: int, order: dict[str, Any]) -> None:
        if order["kind"] == "train":
            machines.here[102] = late

    machines.before = before
    machines.train(wait_for=2)


def test_a_node_that_comes_late_takes_part(tmp_path: Path) -> None:
    """Two of three seats are taken at the start; the third node comes in round 1 and trains from then on."""
    machines = Machines(tmp_path, CAPACITIES, method="pa3dfl", per_round=3, **SMALL["pa3dfl"])
    train_with_a_late_node(machines)
    taken = [r["participants"] for r in records(machines.site.run)]
    assert taken[0] == [0, 1]
    assert taken[-1] == [0, 1, 2]
    assert "node-2 came later and is client 2" in machines.site.log.read_text()
    assert (machines.site.nodes / "node-2" / "model.json").exists()


def test_a_late_node_that_would_narrow_everybody_stays_out(tmp_path: Path) -> None:
    machines = Machines(tmp_path, ["1", "1/4", "1/256"], method="fedavg", per_round=3)
    train_with_a_late_node(machines)
    assert [r["participants"] for r in records(machines.site.run)] == [[0, 1]] * 3
    assert "it affords less than the width 1/2 at which all others train" in machines.site.log.read_text()


def test_too_few_nodes(tmp_path: Path) -> None:
    machines = Machines(tmp_path, CAPACITIES)
    del machines.here[101]
    with pytest.raises(UserError, match="2 of 3 nodes came within 0 s"):
        machines.train()


def test_a_name_belongs_to_one_node(tmp_path: Path) -> None:
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=1)
    machines.here[103] = machines.here[102] | {"folder": str(tmp_path / "thief")}
    machines.train()
    assert "a node was not let in: the name 'node-2' is taken" in machines.site.log.read_text()
    assert {node for node, order in machines.orders if order["kind"] == "train"} <= {100, 101, 102}


def test_rows_of_another_kind(tmp_path: Path) -> None:
    machines = Machines(tmp_path, CAPACITIES)
    np.savez("node-1.npz", x=np.zeros((9, 1, 9, 9), np.uint8), y=np.arange(9) % 4)
    with pytest.raises(UserError, match="nodes have rows of different kinds"):
        machines.train()


def test_a_full_disk_on_a_node_is_a_rejection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pa3dfl.engines.flower import shelf

    machines = Machines(tmp_path, CAPACITIES, method="ditto", per_round=3, rounds=1)
    real = shelf.write_atomically

    def full(path: Path, content: bytes) -> None:
        if "node-1" in str(path):
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(shelf, "write_atomically", full)
    machines.train()
    [record] = records(machines.site.run)
    assert record["participants"] == [0, 2]
    assert "No space left on device" in record["rejected"][0]["reason"]


def test_a_training_starts_once(tmp_path: Path) -> None:
    """A SuperLink that comes back starts unfinished runs again: that must not touch what is there."""
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=1)
    machines.train()
    before = (machines.site.run / "rounds.jsonl").read_text()
    given = {"folder": str(machines.site.folder), "ticket": "mine", "resume": False, "wait-for": 0, "patience": 0.0}
    with pytest.raises(UserError, match="this training was started before"):
        machines.serve(given)
    assert (machines.site.run / "rounds.jsonl").read_text() == before


def test_capacity_in_a_node_s_own_words() -> None:
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


def test_a_round_in_a_line() -> None:
    record = {
        "round": 2, "participants": [0, 3], "missing": [1], "rejected": [{"client": 2, "reason": "norm 1e+30"}],
        "train_loss": 1.25, "test_accuracy": 0.5, "untested": [1], "seconds": 3.2,
    }  # fmt: skip
    assert said(record, 9, {1: "node-1", 2: "node-2"}) == (
        "round 2/9: 2 answered, missing node-1, rejected node-2: norm 1e+30, loss 1.250, accuracy 50.0%, "
        "not tested node-1, 3 s"
    )
