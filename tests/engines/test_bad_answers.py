"""Answers of nodes that are damaged or malicious: they are named, and they never reach the server's state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from loopback import Nodes, Reply, Tamper, fresh, same
from safetensors.torch import load, save

from pa3dfl.core.tree import Tree
from pa3dfl.core.tree import wire as copy
from pa3dfl.engines import Round
from pa3dfl.engines.flower import messages
from pa3dfl.engines.guard import Guard
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Update, find, registry

Make = Callable[..., Any]
SMALL = {"pa3dfl": {"embedding": 4, "hidden": 4}}
UPLOADING = [name for name in registry() if name != "local-only"]


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
    "many rows": (said(n=10**12), "claims 1,000,000,000,000 training rows"),
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
    """Whatever client 1 sends, the server's state is that of the honest clients, and client 1 learns the reason."""
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
    """The update that comes with it is refused too."""
    method = find("fedavg")()
    task = make_task(method)
    nodes = Nodes(method, task, tmp_path)
    nodes.tamper = {0: said(score="good"), 1: said(score={"val_accuracy": 0.5})}
    work = Round(method, task, fresh(method, task), {}, task.clients[:3], 1, scored={0, 1, 2})
    updates = nodes.engine().train(work)
    assert [bool(u.refused) for u in updates] == [True, True, False]
    assert [u.score is None for u in updates] == [True, True, False]
