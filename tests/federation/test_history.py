"""The history of a run: what was measured, within a budget, the same after a stop; and `pa3dfl.load`."""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import run, stop_at

import pa3dfl
from conftest import TINY, make_arrays
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.engines.cost import cost
from pa3dfl.experiments import api
from pa3dfl.runs import history
from pa3dfl.runs.rundata import RunData


def histories(path: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted((path / "history").iterdir())}


def records(table: Any) -> list[dict[str, Any]]:
    return table.to_dict("records")


def test_the_history_holds_what_evaluations_measured(data: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    path = run(data, tmp_path / "run", method="pa3dfl", hidden=8)
    loaded = pa3dfl.load(path)
    assert loaded.config["method"] == "pa3dfl"
    assert loaded.summary is not None
    assert [r["round"] for r in records(loaded.rounds)] == [1, 2, 3, 4]
    rows = records(loaded.evaluations)
    assert [(r["round"], r["client"]) for r in rows] == [(e, i) for e in (2, 4) for i in range(6)]
    for evaluated in (r for r in records(loaded.rounds) if r["rules"] == r["rules"]):  # NaN: not evaluated
        own = [r for r in rows if r["round"] == evaluated["round"]]
        for rule, means in evaluated["rules"].items():
            assert np.mean([r[rule] for r in own]) == pytest.approx(means["test_accuracy"])
        assert np.mean([r["loss"] for r in own]) == pytest.approx(evaluated["val_loss"])
        assert np.mean([r["alpha"] for r in own]) == pytest.approx(evaluated["alpha"])
    with (path / "clients.csv").open() as file:
        sizes = [sum(int(row[f"n_{part}"]) for part in ("train", "val", "test")) for row in csv.DictReader(file)]
    clients = records(loaded.clients)
    assert [sum(row[f"label_{k}"] for k in range(4)) for row in clients] == sizes
    assert len(loaded.embeddings) == 12
    assert {"e0", "e63"} <= set(loaded.embeddings.columns)
    assert {r["layer"] for r in records(loaded.temperatures)} >= {"head.weight"}
    # The multiply-adds of a step are those of `pa3dfl cost`.
    config = api.configure(TINY | {"data": data, "hidden": 8})
    method = api.make_method(config)
    task = api.make_task(config, method, make_arrays(240))
    [expected] = cost(method, task.model, task.p_min, 10, [task.clients[0].width])
    steps = loaded.about["forward_multiply_adds_of_a_step"]
    assert steps[expected["width"]] == expected["step_multiply_adds"]
    made_by = ("version", "commit", "torch", "device")
    assert {k: loaded.about[k] for k in made_by} == {k: loaded.summary[k] for k in made_by}


def test_mixing_weights_follow_from_the_history(data: str, tmp_path: Path) -> None:
    path = run(data, tmp_path / "run", method="pa3dfl", hidden=8, rounds=2)
    [(_, arrays)] = pa3dfl.load(path).history()
    assert np.linalg.norm(arrays["encoded"], axis=1) == pytest.approx(np.ones(6), abs=1e-5)
    saved = api.build(
        api.configure(TINY | {"data": data, "hidden": 8}), make_arrays(240), api.RunDirectory(path)
    ).restore()
    from pa3dfl.core.tree import take
    from pa3dfl.methods.pa3dfl.method import HN, hypernetwork

    config = api.configure(TINY | {"data": data, "hidden": 8})
    method = api.make_method(config)
    net = hypernetwork(method, api.make_task(config, method, make_arrays(240)))
    mixes = net.mixes(take(HN, saved.server), list(range(6))).numpy()
    weights = np.exp(arrays["encoded"] @ arrays["encoded"].T / arrays["tau"][:, None, None])
    weights /= weights.sum(-1, keepdims=True)
    assert weights @ arrays["encoded"] == pytest.approx(mixes, abs=1e-5)


def test_a_stopped_run_has_the_same_history(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(data, tmp_path / "whole", method="pfedhn", eval_every=1)
    with monkeypatch.context() as m:
        stop_at(m, 21)
        with pytest.raises(Interrupted):
            run(data, tmp_path / "stopped", method="pfedhn", eval_every=1)
    (tmp_path / "stopped" / "history" / "round-0000004.npz").write_bytes(b"of a round that was lost")
    api.resume(tmp_path / "stopped")
    assert histories(tmp_path / "stopped") == histories(whole)
    assert [k for k in histories(whole) if "round" in k] == [f"round-000000{i}.npz" for i in (1, 2, 3, 4)]


def test_a_budget_leaves_out_clients_and_evaluations(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "CLIENTS", 4)
    monkeypatch.setattr(history, "BUDGET", 200)
    path = run(data, tmp_path / "run", method="fedavg", eval_every=1, rounds=5)
    loaded = pa3dfl.load(path)
    kept = [(rnd, a["client"].tolist()) for rnd, a in loaded.history()]
    # 5 evaluations of 4 clients × 6 numbers × 4 bytes are 480: every third, and the last.
    assert [rnd for rnd, _ in kept] == [3, 5]
    assert kept[0][1] == kept[1][1]
    assert len(kept[0][1]) == 4
    assert (loaded.about["clients_tested"], loaded.about["clients_kept"]) == (6, 4)
    assert loaded.about["evaluations_kept"] == "every 3"


def test_without_pandas_tables_are_records(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run(data, tmp_path / "run", method="fedavg", rounds=2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    loaded = pa3dfl.load(path)
    assert loaded.evaluations[0]["client"] == 0
    assert (loaded.embeddings, loaded.temperatures) == ([], [])
    assert loaded.clients[0]["width"] == "1" or "/" in loaded.clients[0]["width"]


def test_folders_that_are_no_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run directory: it has no config\.yaml"):
        pa3dfl.load(tmp_path)
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "round-0000001.npz").write_text("not an archive")
    with pytest.raises(UserError, match=r"round-0000001.npz cannot be read"):
        list(RunData(tmp_path, {}).history())
    (tmp_path / "rounds.jsonl").write_text('{"round": 1\n{"round": 2}\n')
    with pytest.raises(UserError, match="line 1, is not valid JSON"):
        RunData(tmp_path, {}).rounds  # noqa: B018
