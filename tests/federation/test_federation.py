"""The federation: equal seeds give equal bits; what a run writes, evaluates and asks of its method."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import assert_same, rounds, run

from conftest import TINY, make_arrays
from pa3dfl.core.options.config import read_yaml
from pa3dfl.methods import assembly, find, registry


def test_same_seed_same_bits_other_seed_other_partition(data: str, tmp_path: Path) -> None:
    a, b, c = (
        run(data, tmp_path / n, rounds=2, seed=s, hidden=8, threads=2) for n, s in (("a", 3), ("b", 3), ("c", 4))
    )
    assert_same(a, b)
    assert rounds(a)[0]["train_loss"] != rounds(c)[0]["train_loss"]
    tasks = []
    for seed in (3, 4):
        config = assembly.configure(TINY | {"data": data, "seed": seed})
        tasks.append(assembly.make_task(config, assembly.make_method(config), make_arrays(240)))
    assert any(not np.array_equal(x.train, y.train) for x, y in zip(*(t.data.splits for t in tasks), strict=True))


def test_early_stopping_counts_rounds(data: str, tmp_path: Path) -> None:
    """With a vanishing step nothing improves on round 1: more than 0.25 · 20 rounds later means round 7."""
    path = run(data, tmp_path / "a", method="fedavg", rounds=20, eval_every=1, lr=1e-12, patience=0.25)
    summary = json.loads((path / "summary.json").read_text())
    assert summary["stopped_early"]
    assert (summary["best_round"], summary["rounds"]) == (1, 7)


def test_only_two_checkpoints_and_the_best_are_kept(data: str, tmp_path: Path) -> None:
    """Each of the two manifests names its own best: that of round 3 was round 2, the first evaluation."""
    path = run(data, tmp_path / "a", method="fedavg")
    names = sorted(f.name for f in (path / "checkpoints").iterdir())
    assert names == [*(f"server.{rnd}.safetensors" for rnd in (2, 3, 4)), "state.json", "state.previous.json"]


def test_files_of_a_run_directory(data: str, tmp_path: Path) -> None:
    path = run(data, tmp_path / "a", hidden=8)
    summary = json.loads((path / "summary.json").read_text())
    assert summary.keys() >= {
        "method", "data", "setting", "seed", "rounds", "best_round", "test_accuracy", "val_accuracy",
        "worst_decile_accuracy", "seconds", "device", "engine", "version", "commit", "config_hash",
    }  # fmt: skip
    records = rounds(path)
    assert [r["round"] for r in records] == [1, 2, 3, 4]
    assert all(len(r["participants"]) == 3 and r["bytes_up"] > 0 and r["bytes_down"] > 0 for r in records)
    assert ["test_accuracy" in r for r in records] == [False, True, False, True]
    best = max((r for r in records if "val_accuracy" in r), key=lambda r: r["val_accuracy"])
    assert summary["test_accuracy"] == best["test_accuracy"]
    lines = (path / "clients.csv").read_text().splitlines()
    assert lines[0] == (
        "client,r,width,share,n_train,n_val,n_test,val_accuracy,test_accuracy,alpha,newcomer,adapted,received,kept"
    )
    assert len(lines) == 7
    assert (path / "learning_curve.png").stat().st_size > 1000
    again = run(data, tmp_path / "again", **{k: v for k, v in read_yaml(path / "config.yaml").items()
                                             if k not in ("data_fingerprint", "out", "data")})  # fmt: skip
    assert_same(path, again)


def test_a_sample_of_clients_is_evaluated(data: str, tmp_path: Path) -> None:
    """The same clients every time, in the order of their ids; clients.csv has only these."""
    path = run(data, tmp_path / "a", method="local-only", eval_clients=2, eval_every=1)
    whole = run(data, tmp_path / "b", method="local-only", eval_clients=6, eval_every=1)
    lines, all_lines = ((p / "clients.csv").read_text().splitlines() for p in (path, whole))
    ids = [int(line.partition(",")[0]) for line in lines[1:]]
    assert len(ids) == 2
    assert ids == sorted(ids)
    assert len(all_lines) == 7
    by_client = {int(line.partition(",")[0]): line for line in all_lines[1:]}
    assert [by_client[i].split(",")[:6] for i in ids] == [line.split(",")[:6] for line in lines[1:]]


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed", "clip"])
@pytest.mark.parametrize("method", registry())
def test_parameters_are_made_once_for_each_client(
    method: str, rule: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round asks the method for the downloads of its cohort, a test for those of all clients, and nothing else."""
    asked: list[list[int]] = []
    cls = find(method)
    real = cls.download

    def download(self: Any, task: Any, server: Any, clients: Any, rnd: int) -> Any:
        asked.append([c.id for c in clients])
        return real(self, task, server, clients, rnd)

    monkeypatch.setattr(cls, "download", download)
    path = run(data, tmp_path / "a", method=method, robust=rule, rounds=2)
    cohorts = [r["participants"] for r in rounds(path)]
    assert [len(c) for c in cohorts] == [3, 3]
    assert asked == [*cohorts, list(range(6))]
