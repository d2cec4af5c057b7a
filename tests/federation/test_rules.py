"""The three rules of testing, each against what it says, for clients with every kind of past."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import TINY
from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import wire
from pa3dfl.data import load
from pa3dfl.engines import Round, local
from pa3dfl.engines.sequential import Sequential
from pa3dfl.experiments import api
from pa3dfl.federation.evaluation import judge
from pa3dfl.federation.federation import Federation, places
from pa3dfl.federation.state import Plan, State
from pa3dfl.methods import Score, assembly, find, registry
from pa3dfl.runs.format import RunDirectory
from pa3dfl.runs.metrics import averages

Make = Callable[..., Any]


def federation(data: str, out: Path, **given: Any) -> Federation:
    config = assembly.configure(TINY | {"per_round": 2, "data": data, "out": str(out)} | given)
    out.mkdir()
    return api.build(config, load(config.data), RunDirectory(out))


def test_adapted_fedavg_is_one_more_local_pass(make_task: Make) -> None:
    """By hand, bit for bit: the global model, trained on the client's rows in the order of the test."""
    method = find("fedavg")()
    task = make_task(method)
    task = replace(task, local=replace(task.local, clip_norm=100.0))
    server = {k: v.double() for k, v in method.init_server(task).items()}
    client = task.clients[2]
    theta = {k: v.clone().requires_grad_() for k, v in server.items()}
    for x, y in local.batches(task, client, 5, "test"):
        loss = torch.nn.functional.cross_entropy(task.model(theta, x, client.width), y)
        gradient = dict(zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True))
        shrink = (torch.cat([g.flatten() for g in gradient.values()]).norm() / task.local.clip_norm).clamp(min=1.0)
        assert shrink == 1.0  # nothing is clipped here: clipping has its own test
        with torch.no_grad():
            rate = torch.tensor(task.local.rate(5), dtype=torch.float64)
            for k, p in theta.items():  # p − rate · decay · p − rate · g, rounded as SGD rounds it
                p.addcmul_(p, rate, value=-task.local.weight_decay)
                p.addcmul_(gradient[k], rate, value=-1)
    expected = {k: v.detach() for k, v in theta.items()}
    work = Round(method, task, server, {}, [client], 5)
    [(score, model)] = Sequential().test_one(method, task, client, wire(server), None, 5, ["adapted"], "accuracy")
    assert all(torch.equal(model[k], v) for k, v in expected.items())
    assert Sequential().evaluate(work, ["adapted"]) == [score]


@pytest.mark.parametrize("name", registry())
def test_received_is_what_the_server_sends_and_adapted_trains(name: str, make_task: Make) -> None:
    """One rule trains one pass, the other none; neither changes server or private state."""
    method = find(name)()
    task = make_task(method)
    passes = []

    class Counting(Sequential):
        def train_client(self, *given: Any) -> Any:
            passes.append(given[-1])
            return super().train_client(*given)

    server = {k: v.double() for k, v in method.init_server(task).items()}
    work = Round(method, task, server, {}, task.clients, 1)
    received = Counting().evaluate(work, ["received"])
    assert passes == []
    adapted = Counting().evaluate(work, ["adapted", "received"])
    assert passes == ["test"] * 4
    assert [s for s in adapted if s.rule == "received"] == received
    assert [s.client for s in adapted] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(a.val_loss != r.val_loss for a, r in zip(adapted[::2], received, strict=True))


@pytest.mark.parametrize("name", registry())
def test_kept_is_the_model_that_the_last_participation_left(name: str, make_task: Make) -> None:
    """By hand: the trained model, chosen among the method's candidates, on the client's own rows."""
    method = find(name)()
    task = make_task(method)
    server = {k: v.double() for k, v in method.init_server(task).items()}
    work = Round(method, task, server, {}, task.clients, 1, scored=[1])
    updates = Sequential().train(work)
    assert [u.score is None for u in updates] == [True, False, True, True]
    client = task.clients[1]
    down = wire(method.download(task, server, task.clients, 1)[1])
    private = {k: v.double() for k, v in method.init_client(task, client).items()}
    start, fixed = method.begin(task, client, down, private)
    trained, _ = local.train(method, task, client, start, fixed, 1, "train")
    candidates = method.personal(task, client.width, start, trained, fixed)
    assert updates[1].score == local.score(method, task, client, "kept", candidates, "accuracy")


def test_kept_of_clients_with_every_kind_of_past(data: str, tmp_path: Path) -> None:
    """A client that never took part, one that just did, and one with an old state."""
    f = federation(data, tmp_path / "a", method="ditto", rounds=8, eval_every=4)
    last = {i: r for r in range(1, 9) for i in places(0, r, 6, 2)}
    trained: dict[int, dict[int, Score]] = {}
    train = f.engine.train

    def scoring_all(work: Round, *rest: Any) -> Any:
        everybody = train(replace(work, scored=range(6)), *rest)
        trained[work.number] = {u.client.id: u.score for u in everybody}
        asked = train(work, *rest)  # what the federation asks for is a part of that
        for u in asked:
            assert u.score == (trained[work.number][u.client.id] if u.client.id in work.scored else None)
        return asked

    f.engine.train = scoring_all  # type: ignore[method-assign]
    state = f.start()
    from pa3dfl.core.progress import Meter

    meter = Meter("", 8, partial(f.plan.work, tested=6), f.plan.next_evaluation)
    for _ in range(8):
        f.round(state, meter)
    assert {i: trained[r][i] for i, r in last.items()} == state.kept
    by_rule = f.evaluate(state, meter)
    assert [s.rule for s in by_rule["kept"]] == ["kept"] * 6
    for kept, received in zip(by_rule["kept"], by_rule["received"], strict=True):
        assert kept == (state.kept[kept.client] if kept.client in last else replace(received, rule="kept"))
    # A personal model depends on nothing else than its client's last participation, so that here the two rules agree.
    assert [(s.val_loss, s.test_accuracy) for s in by_rule["kept"]] == [
        (s.val_loss, s.test_accuracy) for s in by_rule["received"]
    ]


def test_the_kinds_of_past_above_all_occur() -> None:
    last = {i: r for r in range(1, 9) for i in places(0, r, 6, 2)}
    assert len(last) < 6 or min(last.values()) < 5
    assert max(last.values()) == 8


@pytest.mark.parametrize("tested", ["adapted", "received", "kept"])
def test_the_option_tested_chooses_the_score(tested: str, data: str, tmp_path: Path) -> None:
    """Every run records what needs no further training; the score is that of its own rule."""
    summary = api.run(**TINY, data=data, out=str(tmp_path / "run"), method="fedavg", tested=tested)
    records = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    measured = {"received", "kept"} | {tested}
    assert summary["tested"] == tested
    assert summary["rules"].keys() == measured
    for record in (r for r in records if "rules" in r):
        assert record["rules"].keys() == measured
        assert all(record[k] == v for k, v in record["rules"][tested].items())
    for rule, best in summary["rules"].items():
        own = {r["round"]: r["rules"][rule] for r in records if "rules" in r}
        top = max(own, key=lambda r: own[r]["val_accuracy"])
        assert best == {"best_round": top} | {k: own[top][k] for k in best if k != "best_round"}
    assert {k: summary[k] for k in summary["rules"][tested]} == summary["rules"][tested]
    header, *rows = (line.split(",") for line in (tmp_path / "run/clients.csv").read_text().splitlines())
    clients = [dict(zip(header, row, strict=True)) for row in rows]
    for rule in ("adapted", "received", "kept"):
        values = [c[rule] for c in clients]
        if rule in measured:
            assert sum(map(float, values)) / 6 == pytest.approx(summary["rules"][rule]["test_accuracy"])
        else:
            assert values == [""] * 6
    assert all(c["test_accuracy"] == c[tested] for c in clients)


def test_the_rule_does_not_change_training(data: str, tmp_path: Path) -> None:
    losses = []
    for rule in ("adapted", "received", "kept"):
        api.run(**TINY, data=data, out=str(tmp_path / rule), method="pa3dfl", hidden=8, tested=rule)
        lines = (tmp_path / rule / "rounds.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["train_loss"] for line in lines])
    assert losses[0] == losses[1] == losses[2]


def test_early_stopping_follows_the_score() -> None:
    """Validation accuracy rises by one rule and falls by the other: only the chosen rule stops a run."""
    for tested, stops in (("received", True), ("kept", False)):
        plan = Plan(rounds=10, per_round=1, eval_every=1, patience=0.2, select="accuracy", checkpoint_every=1,
                    tested=tested)  # fmt: skip
        state = State(0, {}, {}, tested)
        for rnd in range(1, 6):
            state.round = rnd
            by_rule = {rule: [Score(0, rule, 0.5 + sign * rnd / 100, 1.0, 0.5, 1.0)]
                       for rule, sign in (("received", -1), ("kept", 1))}  # fmt: skip
            judge(state, by_rule, plan, best_round_per_client=False)
        assert state.stopped is stops
        assert (state.bests["received"].round, state.bests["kept"].round) == (1, 5)
        assert averages(state.best.scores)["val_accuracy"] == pytest.approx(0.49 if stops else 0.55)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(UserError, match="tested is 'trained': expected one of adapted, received, kept"):
        assembly.configure({"tested": "trained"})


@pytest.mark.parametrize(("rnd", "expected"), [(1, 4), (4, 4), (5, 8), (9, 10), (10, 10)])
def test_the_next_evaluation(rnd: int, expected: int) -> None:
    plan = Plan(rounds=10, per_round=1, eval_every=4, patience=1, select="accuracy", checkpoint_every=1)
    assert plan.next_evaluation(rnd) == expected
    assert plan.evaluates(expected)
    assert not any(plan.evaluates(r) for r in range(rnd, expected))
