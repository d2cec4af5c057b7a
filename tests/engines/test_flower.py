"""The engine whose clients are Flower's nodes gives the same bits as the sequential engine."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from loopback import Nodes, fresh, same

from conftest import make_arrays
from pa3dfl.core.errors import UserError
from pa3dfl.engines import Round
from pa3dfl.engines.flower.state_store import StateStore
from pa3dfl.engines.sequential import Sequential
from pa3dfl.experiments import api
from pa3dfl.experiments.export import export
from pa3dfl.federation.checkpoint import Checkpoints
from pa3dfl.methods import find, registry
from pa3dfl.runs.format import RunDirectory

Make = Callable[..., Any]


@pytest.mark.parametrize("name", registry())
def test_same_bits_as_the_sequential_engine(name: str, make_task: Make, tmp_path: Path) -> None:
    """Three rounds and tests: server, private states on the nodes' disks, scores and bytes."""
    method = find(name)()
    task = make_task(method)
    nodes = Nodes(method, task, tmp_path)
    ends: list[Any] = []
    for engine in (Sequential(), nodes.engine()):
        server, private, seen = fresh(method, task), {}, []
        for rnd in (1, 2, 3):
            cohort = task.clients[:3] if rnd < 3 else task.clients[1:]
            updates = engine.train(Round(method, task, server, private, cohort, rnd, scored={1, 2}))
            private |= {u.client.id: u.private for u in updates if u.private}
            seen.append([(u.client, u.n, u.loss, u.bytes_down, u.score) for u in updates])
            server = method.aggregate(task, server, updates, rnd)
            work = Round(method, task, server, private, task.clients, rnd)
            seen.append(engine.evaluate(work, ["received", "adapted"]))
        ends.append((server, private, seen))
    assert same(ends[0][0], ends[1][0])
    assert ends[0][2] == ends[1][2]
    assert ends[0][1].keys() == ends[1][1].keys()
    for i, receipt in ends[1][1].items():
        assert same(ends[0][1][i], nodes.states(i).load(int(receipt["round"])) or {})


def test_a_round_ends_at_its_deadline_without_silent_clients(make_task: Make, tmp_path: Path) -> None:
    method = find("fedavg")()
    task = make_task(method)
    nodes = Nodes(method, task, tmp_path)
    nodes.gone = {0, 2}
    began = time.monotonic()
    updates = nodes.engine(timeout=2.0).train(Round(method, task, fresh(method, task), {}, task.clients, 1))
    assert [u.client.id for u in updates] == [1, 3]
    assert 2 <= time.monotonic() - began < 20
    nodes.gone = {0, 1, 2, 3}
    assert nodes.engine(timeout=0.2).train(Round(method, task, fresh(method, task), {}, task.clients, 1)) == []


def test_a_round_waits_until_a_node_can_be_reached(
    make_task: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = find("fedavg")()
    task = make_task(method)
    nodes = Nodes(method, task, tmp_path)
    seen = iter([{}, {}, nodes.nodes()])
    monkeypatch.setattr(nodes, "nodes", lambda: next(seen))
    monkeypatch.setattr("pa3dfl.engines.flower.engine.ASK_AGAIN_SECONDS", 0.01)
    updates = nodes.engine().train(Round(method, task, fresh(method, task), {}, task.clients, 1))
    assert [u.client.id for u in updates] == [0, 1, 2, 3]


def test_the_state_store_keeps_as_many_states_as_the_server_may_need(tmp_path: Path) -> None:
    states = StateStore(tmp_path / "mine", keep=2)
    assert states.load(None) is None
    for rnd in (1, 2, 3):
        states.save(rnd, {"v": torch.full((2,), float(rnd))})
    states.settle(3)
    assert states.rounds() == [2, 3]
    states.save(5, {"v": torch.zeros(2)})
    states.settle(3)  # round 5 was not accepted
    assert states.rounds() == [2, 3]
    assert torch.equal((states.load(2) or {})["v"], torch.tensor([2.0, 2.0]))
    with pytest.raises(UserError, match="private state of round 5 cannot be read"):
        states.load(5)
    (tmp_path / "mine" / "private.3.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match="private state of round 3 cannot be read"):
        states.load(3)
    states.settle(None)
    assert states.rounds() == []
    assert states.load(7) is None  # the disk is new: it starts afresh


def test_a_rejected_round_leaves_no_private_state(make_task: Make, tmp_path: Path) -> None:
    """Round 2's update is lost: round 3 starts from round 1's private model, as on one machine."""
    method = find("ditto")()
    task = make_task(method)
    nodes = Nodes(method, task, tmp_path)
    ends = []
    for engine in (Sequential(), nodes.engine()):
        server, private = fresh(method, task), {}
        for rnd in (1, 2, 3):
            updates = engine.train(Round(method, task, server, private, task.clients[:2], rnd))
            good = updates if rnd != 2 else updates[:1]
            private |= {u.client.id: u.private for u in good}
            server = method.aggregate(task, server, good, rnd)
        ends.append((server, private))
    assert same(ends[0][0], ends[1][0])
    assert nodes.states(1).rounds() == [1, 3]
    assert same(ends[0][1][1], nodes.states(1).load(3) or {})


RAY = {
    "model": "cnn-fashion", "clients": 4, "per_round": 2, "epochs": 1, "batch": 10, "lr": 0.05, "rounds": 2,
    "eval_every": 2, "threads": 1, "setting": "levels:1/4,1/16", "device": "cpu", "method": "ditto",
    "newcomers": "3", "newcomer_rounds": 1,
}  # fmt: skip


def test_a_run_on_ray_equals_the_sequential_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own simulation, in processes of its own, with its clients' models and a newcomer.

    `make test-deploy` does it for all methods.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arrays = make_arrays(120)
    np.savez("tiny.npz", x=arrays.x, y=arrays.y)
    for out, engine in (("one", "sequential"), ("ray", "flower")):
        api.run(**RAY, data="tiny.npz", out=out, engine=engine)
    assert_same_run(tmp_path / "one", tmp_path / "ray")
    assert (tmp_path / "one/newcomers.csv").read_bytes() == (tmp_path / "ray/newcomers.csv").read_bytes()
    rows = [r for r in RunDirectory(tmp_path / "ray").read_clients() if r["client"] != 3]
    for out in ("one", "ray"):
        records = list(export(tmp_path / out))
        assert [r["client"] for r in records] == [0, 1, 2, 3]
        assert [r["file_accuracy"] for r in records[:3]] == [r["test_accuracy"] for r in rows]
    for client in range(4):
        one, ray = (tmp_path / out / f"models/client-{client}/model.safetensors" for out in ("one", "ray"))
        assert one.read_bytes() == ray.read_bytes()


def assert_same_run(one: Path, ray: Path) -> None:
    records = [[json.loads(line) for line in (p / "rounds.jsonl").read_text().splitlines()] for p in (one, ray)]
    assert [[{k: v for k, v in r.items() if k != "seconds"} for r in run] for run in records[:1]] == [
        [{k: v for k, v in r.items() if k != "seconds"} for r in run] for run in records[1:]
    ]
    assert (one / "clients.csv").read_text() == (ray / "clients.csv").read_text()
    a, b = (Checkpoints(p / "checkpoints").load(torch.device("cpu")) for p in (one, ray))
    assert a is not None
    assert b is not None
    assert same(a.server, b.server)
    assert a.private.keys() == b.private.keys()
    for i, receipt in b.private.items():
        assert same(a.private[i], StateStore(ray / "nodes" / str(i), 3).load(int(receipt["round"])) or {})
