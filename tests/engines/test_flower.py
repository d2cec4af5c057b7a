"""The engine whose clients are Flower's nodes: the same bits, and nothing but honest updates in the server's state."""

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

from loopback import Nodes, Reply, Tamper
from safetensors.torch import load, save

from conftest import make_arrays
from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.core.tree import wire as copy
from pa3dfl.engines import Round
from pa3dfl.engines.flower import messages
from pa3dfl.engines.flower.state_store import StateStore
from pa3dfl.engines.guard import Guard
from pa3dfl.engines.sequential import Sequential
from pa3dfl.experiments import api
from pa3dfl.experiments.export import export
from pa3dfl.federation.checkpoint import Checkpoints
from pa3dfl.methods import Method, Update, find, registry
from pa3dfl.methods.problem import Task
from pa3dfl.runs.format import RunDirectory

Make = Callable[..., Any]
SMALL = {"pa3dfl": {"embedding": 4, "hidden": 4}}
UPLOADING = [name for name in registry() if name != "local-only"]


def fresh(method: Method, task: Task) -> Tree:
    return {k: v.to(task.dtype) for k, v in method.init_server(task).items()}


def same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


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


def with_tree(change: Callable[[Tree], Any]) -> Tamper:
    def tamper(facts: dict[str, Any], blob: bytes) -> list[Reply]:
        tree = load(blob)
        change(tree)
        return [(facts, save(tree))]

    return tamper


def first(tree: Tree) -> str:
    return min(tree)


def put(value: float) -> Tamper:
    return with_tree(lambda tree: tree[first(tree)].view(-1)[:1].fill_(value))


def replaced(make: Callable[[torch.Tensor], torch.Tensor]) -> Tamper:
    return with_tree(lambda tree: tree.update({first(tree): make(tree[first(tree)]).contiguous()}))


def said(**facts: Any) -> Tamper:
    return lambda honest, blob: [(honest | facts, blob)]


BAD: dict[str, tuple[Tamper, str]] = {
    "nan": (put(float("nan")), "NaN or infinite"),
    "inf": (put(float("inf")), "NaN or infinite"),
    "-inf": (put(float("-inf")), "NaN or infinite"),
    "1e30": (put(1e30), "norm 1e+30 is beyond 1e+06"),
    "missing": (with_tree(lambda tree: tree.pop(first(tree))), "missing key"),
    "extra": (with_tree(lambda tree: tree.update(extra=torch.ones(1))), "unexpected key 'extra'"),
    "shape": (replaced(lambda v: v.flatten()[:-1]), "has shape"),
    "broadcast": (replaced(lambda v: v.flatten()[0].view([1] * v.ndim)), "has shape"),
    "scalar": (replaced(lambda v: v.flatten()[0].clone()), "has shape ()"),
    "dtype": (replaced(lambda v: v.half()), "has dtype torch.float16"),
    "integer": (replaced(lambda v: v.int()), "has dtype torch.int32"),
    "no rows": (said(n=0), "claims 0 training rows"),
    "negative rows": (said(n=-5), "claims -5 training rows"),
    "many rows": (said(n=10**12), "claims 1000000000000 training rows"),
    "rows in words": (said(n="many"), "n is 'many', expected a whole number"),
    "true rows": (said(n=True), "n is 'True', expected a whole number"),
    "stale": (said(round=0), "answers 'train' of round 0, expected 'train' of 1"),
    "another's id": (said(client=2), "answers for client 2, not for itself"),
    "no loss": (said(loss=None), "loss is 'None', expected a number"),
    "ten times the bytes": (lambda facts, blob: [(facts, blob * 10 + b"x" * 20_000)], "bytes, expected at most"),
    "noise": (lambda facts, blob: [(facts, b"\x80\x04noise" + bytes(90))], "not a safetensors file"),
    "cut short": (lambda facts, blob: [(facts, blob[:-1])], "not a safetensors file"),
    "twice": (lambda facts, blob: [(facts, blob), (facts, blob)], "a second update in the same round"),
    "its disk is full": (said(error="disk full"), "disk full"),
}


@pytest.mark.parametrize("name", UPLOADING)
def test_bad_updates_are_named_and_change_nothing(name: str, make_task: Make, tmp_path: Path) -> None:
    """The server's state is that of the honest clients, whatever client 1 sends; and client 1 is told."""
    method = find(name)(**SMALL.get(name, {}))
    task = make_task(method)
    nodes, start = Nodes(method, task, tmp_path), fresh(method, task)

    work = Round(method, task, start, {}, task.clients, 1)

    def round_of(engine: Any) -> list[Update]:
        return engine.train(work)

    def after(updates: list[Update]) -> Tree:
        return method.aggregate(task, copy(start), updates, 1)

    everybody = after(round_of(Sequential()))
    honest = after([u for u in round_of(Sequential()) if u.client.id != 1])
    for kind, (tamper, reason) in BAD.items():
        nodes.tamper = {1: tamper}
        engine = nodes.engine()
        good, bad = Guard(method, task).sift(round_of(engine), work.shapes)
        assert [r.client for r in bad] == [1], kind
        assert reason in bad[0].reason, kind
        assert same(after(good), everybody if kind == "twice" else honest), kind
        engine.tell(bad, {})
        nodes.tamper, nodes.orders = {}, []
        round_of(engine)
        assert {o["client"]: o["rejected"] for o in nodes.orders} == {0: None, 1: bad[0].reason, 2: None, 3: None}


def test_a_size_is_refused_before_tensors_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "load", lambda blob: pytest.fail("tensors were built"))
    spec = {"w": ((10,), torch.float32)}
    with pytest.raises(messages.Refused, match="bytes, expected at most 1,326"):
        messages.unpack(bytes(1327), messages.size_limit(spec))
    assert len(messages.pack({"w": torch.ones(10)})) <= messages.size_limit(spec)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", None, b"\xff", "[" * 100_000])
def test_text_that_is_no_json_object_is_refused(text: Any) -> None:
    with pytest.raises(messages.Refused):
        messages.read_facts(text)


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


def test_invalid_scores_are_left_out(make_task: Make, tmp_path: Path) -> None:
    method = find("fedavg")()
    task = make_task(method)
    nodes = Nodes(method, task, tmp_path)
    nodes.tamper = {
        0: said(scores=[{"val_accuracy": 7, "val_loss": 0, "test_accuracy": 1, "alpha": 1}]),
        1: said(scores=["good"]),
        3: said(scores=[]),
        4: said(scores=7),
        5: said(scores=[{}]),
    }
    scores = nodes.engine().evaluate(Round(method, task, fresh(method, task), {}, task.clients, 1), ["received"])
    assert [s.client for s in scores] == [2]


def test_an_invalid_score_of_training_is_refused(make_task: Make, tmp_path: Path) -> None:
    """The update is refused with it: who sends such a thing is no client of ours."""
    method = find("fedavg")()
    task = make_task(method)
    nodes = Nodes(method, task, tmp_path)
    nodes.tamper = {0: said(score="good"), 1: said(score={"val_accuracy": 0.5})}
    work = Round(method, task, fresh(method, task), {}, task.clients[:3], 1, scored={0, 1, 2})
    updates = nodes.engine().train(work)
    assert [bool(u.refused) for u in updates] == [True, True, False]
    assert [u.score is None for u in updates] == [True, True, False]


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
        assert [r["file_accuracy"] for r in records] == [r["test_accuracy"] for r in rows]
    for client in range(3):
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
