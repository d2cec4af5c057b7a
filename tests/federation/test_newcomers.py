"""Newcomers: training does not use them, they do not change it, and they do not depend on each other."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import make_arrays, on_task, write_data
from pa3dfl import methods
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.options.newcomers import newcomers
from pa3dfl.core.tree import Tree, wire
from pa3dfl.engines import Engine, Round
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.engines.guard import Guard
from pa3dfl.engines.sequential import Sequential
from pa3dfl.experiments import api
from pa3dfl.experiments.export import export
from pa3dfl.federation.newcomers import Joining
from pa3dfl.federation.state import Plan
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Task
from pa3dfl.runs import Run, newcomers_picture, of_newcomers
from pa3dfl.runs.format import RunDirectory

Make = Callable[..., Any]
LATE = frozenset({1, 3})
TINY = {
    "model": "cnn-fashion", "clients": 6, "per_round": 2, "epochs": 1, "batch": 10, "lr": 0.05, "rounds": 2,
    "eval_every": 2, "threads": 1, "setting": "levels:1,1/16", "device": "cpu", "newcomers": "1,4",
    "newcomer_rounds": 2,
}  # fmt: skip


def small(name: str) -> Method:
    return methods.find(name)(**{"hidden": 8} if name in ("pa3dfl", "pfedhn") else {})


def trained(method: Method, task: Task) -> Tree:
    """The server's state after one round of the clients that train from the start."""
    server = on_task(task, method.init_server(task))
    here = [c for c in task.clients if c.id not in task.newcomers]
    return method.aggregate(task, server, Sequential().train(Round(method, task, server, {}, here, 1)), 1)


def join(
    method: Method, task: Task, server: Tree, ids: Sequence[int], folder: Path, engine: Engine | None = None
) -> Joining:
    plan = Plan(1, 1, 1, 1.0, "accuracy", 1, newcomer_rounds=2)
    folder.mkdir()
    work = Round(method, task, server, {}, [task.clients[i] for i in ids], 1)
    joining = Joining(work, engine or Sequential(), Guard(method, task), plan, RunDirectory(folder), method.name)
    joining.run()
    return joining


@pytest.mark.parametrize("name", [*methods.registry(), "pa3dfl-without-hn"])
def test_joining_changes_only_the_newcomers_own_entries(name: str, make_task: Make, tmp_path: Path) -> None:
    method = small(name)
    task = make_task(method, newcomers="1,3", rounds=1)
    assert task.newcomers == LATE
    server = trained(method, task)
    before = wire(server)
    both = join(method, task, server, [1, 3], tmp_path / "both")
    assert server.keys() == before.keys()
    assert all(server[k].numpy().tobytes() == before[k].numpy().tobytes() for k in before)
    for i, own in both.own.items():
        for k in own.keys() & server.keys():  # rows of a table with one for each client
            others = torch.arange(len(task.clients)) != i
            rows = (others,) if len(own[k]) == len(others) else (slice(None), others)
            assert torch.equal(own[k][rows], server[k][rows])
    alone = join(method, task, server, [1], tmp_path / "alone")
    assert alone.scores == [(k, s) for k, s in both.scores if s.client == 1]
    assert all(torch.equal(alone.own[1][k], v) for k, v in both.own[1].items())
    assert {(k, s.client, s.rule) for k, s in both.scores} == {
        (k, i, rule) for k in (0, 1, 2) for i in LATE for rule in ("received", "adapted")
    }


def test_engines_agree(make_task: Make, tmp_path: Path) -> None:
    method = methods.find("pa3dfl")(hidden=8)
    task = make_task(method, newcomers="1,3")
    server = trained(method, task)
    a = join(method, task, server, [1, 3], tmp_path / "a")
    b = join(method, task, server, [1, 3], tmp_path / "b", Threaded(2))
    for i in LATE:
        torch.testing.assert_close(a.own[i], b.own[i], rtol=0, atol=1e-9)
    assert [s.test_accuracy for _, s in a.scores] == [s.test_accuracy for _, s in b.scores]


@pytest.mark.parametrize("name", ["pa3dfl", "pfedhn", "tailorfl"])
def test_training_does_not_see_their_data(name: str, make_task: Make) -> None:
    method, seen = small(name), []
    for value in (0, 255):
        arrays = make_arrays()
        task = make_task(method, arrays, newcomers="1,3")
        for split in (task.data.splits[i] for i in LATE):
            arrays.x[np.concatenate([split.train, split.val, split.test])] = value
        seen.append(trained(method, make_task(method, arrays, newcomers="1,3")))
    assert all(torch.equal(seen[0][k], v) for k, v in seen[1].items())


class StopsAt(Sequential):
    def __init__(self, n: int) -> None:
        self.left = n

    def train_client(self, *args: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().train_client(*args)


@pytest.mark.parametrize("name", ["pa3dfl", "ditto"])
def test_a_stop_while_they_join_costs_one_step(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = TINY | {"data": write_data(tmp_path), "method": name, "engine": "sequential"}
    given |= {"hidden": 8} if name == "pa3dfl" else {}
    api.run(**given, out=str(tmp_path / "whole"))
    # 2·2 trained, 4 tested; then 2 tested at arrival, 2 trained and 2 tested in each of two rounds.
    for n, rounds in ((9, None), (15, 1)):
        folder = tmp_path / f"stopped-{n}"
        with monkeypatch.context() as m:
            m.setattr(api, "engine_of", lambda *_, n=n: StopsAt(n))
            with pytest.raises(Interrupted) as stopped:
                api.run(**given, out=str(folder))
        assert stopped.value.round == 2
        there = folder / "newcomers.csv"
        assert (max(int(row["k"]) for row in read(there)) if there.exists() else None) == rounds
        api.resume(folder)
        assert there.read_bytes() == (tmp_path / "whole/newcomers.csv").read_bytes()
        assert (folder / "clients.csv").read_bytes() == (tmp_path / "whole/clients.csv").read_bytes()


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as lines:
        return list(csv.DictReader(lines))


def test_files_name_the_newcomers_and_their_scores(tmp_path: Path) -> None:
    out = tmp_path / "run"
    api.run(**TINY, data=write_data(tmp_path), method="fedavg", out=str(out))
    clients = {int(row["client"]): row for row in read(out / "clients.csv")}
    assert [i for i, row in clients.items() if row["newcomer"] == "1"] == [1, 4]
    assert all((row["test_accuracy"] == "") == (i in (1, 4)) for i, row in clients.items())
    rows = RunDirectory(out).read_newcomers()
    assert {(r["client"], r["method"], r["k"], r["rule"]) for r in rows} == {
        (i, "fedavg", k, rule) for i in (1, 4) for k in (0, 1, 2) for rule in ("received", "adapted")
    }
    assert all(0 <= r["test_accuracy"] <= 1 for r in rows)
    # FedAvg sends the same model however often a newcomer trains.
    received = {(r["client"], r["test_accuracy"]) for r in rows if r["rule"] == "received"}
    assert len(received) == 2


@pytest.mark.parametrize(("method", "engine", "rule"), [
    ("pa3dfl", "sequential", "adapted"), ("pfedhn", "auto", "received"), ("ditto", "sequential", "kept"),
    ("local-only", "auto", "adapted"),
])  # fmt: skip
def test_the_models_of_newcomers_are_exported(method: str, engine: str, rule: str, data: str, tmp_path: Path) -> None:
    """After their last round, at the accuracy that was counted then; a kept model is what a training leaves."""
    small = {"hidden": 8} if method in ("pa3dfl", "pfedhn") else {}
    run = tmp_path / "run"
    api.run(**TINY, **small, data=data, method=method, engine=engine, tested=rule, out=str(run))
    before = {f: f.read_bytes() for f in run.rglob("*") if f.is_file()}
    records = {r["client"]: r for r in export(run, out=tmp_path / "models")}
    assert sorted(records) == list(range(6))
    counted = "received" if rule == "received" else "adapted"
    for row in RunDirectory(run).read_newcomers():
        if (row["k"], row["rule"]) == (2, counted):
            record = records[row["client"]]
            assert (record["round"], record["rule"]) == (4, counted)
            assert record["file_accuracy"] == record["test_accuracy"] == row["test_accuracy"]
            assert record["alpha"] == float(row["alpha"])
    assert before == {f: f.read_bytes() for f in run.rglob("*") if f.is_file()}


def test_newcomers_that_have_not_joined_yet_have_no_model(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as m:
        m.setattr(api, "engine_of", lambda *_: StopsAt(9))
        with pytest.raises(Interrupted):
            api.run(**TINY, data=data, method="fedavg", engine="sequential", out=str(run))
    with pytest.raises(UserError, match="holds no best state of client 1: it was not evaluated"):
        list(export(run, [1]))
    assert len(list(export(run))) == 4


def test_the_report_is_of_all_seeds_together(tmp_path: Path) -> None:
    runs = []
    for seed in (0, 1):
        rows = [
            {"client": i, "k": k, "rule": "received", "test_accuracy": a + seed / 50}
            for i in (1, 4)
            for k, a in ((0, 0.5), (1, 0.75 + i / 100), (2, 0.77))
        ]
        summary = {"method": "m", "seed": seed, "rules": {"received": {"test_accuracy": 0.8 + seed / 50}}}
        runs.append(Run(tmp_path, f"m, seed {seed}", summary, [], [], True, rows))
    [record] = of_newcomers([*runs, Run(tmp_path, "without", {"method": "o"}, [], [], True)])
    assert record["after"] == [[0, pytest.approx(0.51)], [1, pytest.approx(0.785)], [2, pytest.approx(0.78)]]
    assert (record["name"], record["seeds"], record["newcomers"], record["within"]) == ("m", [0, 1], 4, 1)
    assert record["trained_in"] == pytest.approx(0.81)
    assert newcomers_picture([record], tmp_path / "newcomers.png").stat().st_size > 1000


def test_newcomers_by_share_ids_and_file(tmp_path: Path) -> None:
    assert newcomers(None, 10, 0) == frozenset()
    assert newcomers("3, 7", 10, 0) == {3, 7}
    (tmp_path / "ids").write_text("0\n9\n")
    assert newcomers(str(tmp_path / "ids"), 10, 0) == {0, 9}
    assert len(newcomers("10%", 30, 0)) == 3
    assert newcomers("10%", 30, 0) == newcomers("10%", 30, 0) != newcomers("10%", 30, 1)
    assert len(newcomers("1%", 10, 0)) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3,10", "newcomers 10 is not a client of 0..9"),
        ("3,3", "names a client twice"),
        ("", "newcomers '' cannot be read"),
        ("0%", "not a share between 0% and 100%"),
        ("many%", "not a share"),
        ("nan%", "not a share"),
        ("nowhere.txt", "newcomers 'nowhere.txt' cannot be read (No such file"),
        ("0 1 2 3 4 5 6 7 8 9", "all 10 clients are newcomers"),
        ("99%", "all 10 clients are newcomers"),
    ],
)
def test_wrong_newcomers_are_refused(text: str, said: str) -> None:
    with pytest.raises(UserError) as e:
        newcomers(text, 10, 0)
    assert said in str(e.value)
    assert "\n" not in str(e.value)
