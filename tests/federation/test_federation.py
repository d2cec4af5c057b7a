"""The federation: equal seeds give equal bits, and a stop at any moment costs at most the running round."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import TINY, make_arrays
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.options.config import read_yaml
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.experiments import api
from pa3dfl.federation.checkpoint import Checkpoints
from pa3dfl.methods import assembly, find, registry


def run(data: str, out: Path, **given: Any) -> Path:
    api.run(**(TINY | {"data": data, "out": str(out)} | given))
    return out


def rounds(path: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if k != "seconds"} for r in records]


def bits(path: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint."""
    saved = Checkpoints(path / "checkpoints").load(torch.device("cpu"))
    assert saved is not None
    trees = {"server": saved.server} | {f"client {i}": t for i, t in saved.private.items()}
    return {f"{who} {k}": v.numpy().tobytes() for who, tree in trees.items() for k, v in tree.items()}


def assert_same(a: Path, b: Path) -> None:
    assert rounds(a) == rounds(b)
    assert (a / "clients.csv").read_text() == (b / "clients.csv").read_text()
    assert bits(a) == bits(b)


class StopsAt(Threaded):
    """Interrupted in the middle of its n-th local training, as by Ctrl-C."""

    def __init__(self, n: int) -> None:
        super().__init__(2)
        self.left = itertools.count(n - 1, -1)

    def train_client(self, *args: Any) -> Any:
        if next(self.left) == 0:
            raise KeyboardInterrupt
        return super().train_client(*args)


def stop_at(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(api, "engine_of", lambda *_: StopsAt(n))


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


@pytest.mark.parametrize("method", registry())
def test_a_stopped_and_resumed_run_gives_the_same_bits(
    method: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(data, tmp_path / "whole", method=method)
    with monkeypatch.context() as m:
        stop_at(m, 8)  # in the test after round 2
        with pytest.raises(Interrupted) as stopped:
            run(data, tmp_path / "stopped", method=method)
    assert len(rounds(tmp_path / "stopped")) == stopped.value.round
    assert stopped.value.round in (1, 2)
    api.resume(tmp_path / "stopped")
    assert_same(whole, tmp_path / "stopped")
    assert json.loads((whole / "summary.json").read_text())["rounds"] == 4


def stopped_in_round_4(monkeypatch: pytest.MonkeyPatch, data: str, out: Path, **given: Any) -> None:
    with monkeypatch.context() as m:
        stop_at(m, 17)
        with pytest.raises(Interrupted) as stopped:
            run(data, out, method="fedavg", **given)
    assert stopped.value.round == 3


def test_sigterm_loses_nothing_between_rare_checkpoints(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between rounds the state in memory is whole, and is saved even when no checkpoint was due."""
    whole = run(data, tmp_path / "whole", method="fedavg")
    stopped_in_round_4(monkeypatch, data, tmp_path / "stopped", checkpoint_every=100)
    api.resume(tmp_path / "stopped")
    assert_same(whole, tmp_path / "stopped")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pa3dfl.cli", *words]


def arguments(data: str, out: Path, **given: Any) -> list[str]:
    values = TINY | {"data": data, "out": str(out)} | given
    return [w for k, v in values.items() for w in (f"--{k.replace('_', '-')}", str(v))]


def begin(words: list[str]) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command(*words), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for_round(path: Path, n: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (path / "rounds.jsonl").exists() and len((path / "rounds.jsonl").read_text().splitlines()) >= n:
            return
        time.sleep(0.01)
    pytest.fail(f"round {n} did not come: {process.communicate()[1]}")


def test_killed_twice_at_random_moments(data: str, tmp_path: Path) -> None:
    """Each kill −9 loses at most the running round; the resumed run ends with the same bits."""
    many = {"rounds": 40, "eval_every": 20, "hidden": 8}
    whole = run(data, tmp_path / "whole", **many)
    path, pick = tmp_path / "killed", random.Random()
    words = ["run", *arguments(data, path, **many)]
    for at in (2, 12):
        process = begin(words)
        wait_for_round(path, at, process)
        time.sleep(pick.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = Checkpoints(path / "checkpoints").load(torch.device("cpu"))
        assert kept is not None
        # A round is committed first and written to rounds.jsonl next.
        assert kept.round - len((path / "rounds.jsonl").read_text().splitlines()) in (0, 1)
        words = ["resume", str(path)]
    finished = subprocess.run(command(*words), capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
    assert_same(whole, path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_saving_it(number: signal.Signals, data: str, tmp_path: Path) -> None:
    path = tmp_path / "stopped"
    process = begin(["run", *arguments(data, path, rounds=500, eval_every=500, hidden=8)])
    wait_for_round(path, 2, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    kept = Checkpoints(path / "checkpoints").load(torch.device("cpu"))
    assert kept is not None
    assert kept.round == len(rounds(path)) >= 2
    assert f"stopped after {kept.round} round" in said
    assert "Traceback" not in said


def test_early_stopping_counts_rounds(data: str, tmp_path: Path) -> None:
    """With a vanishing step nothing improves on round 1: more than 0.25 · 20 rounds later means round 7."""
    path = run(data, tmp_path / "a", method="fedavg", rounds=20, eval_every=1, lr=1e-12, patience=0.25)
    summary = json.loads((path / "summary.json").read_text())
    assert summary["stopped_early"]
    assert (summary["best_round"], summary["rounds"]) == (1, 7)


def test_a_damaged_checkpoint_falls_back_to_the_previous_one(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(data, tmp_path / "whole", method="fedavg")
    stopped_in_round_4(monkeypatch, data, tmp_path / "torn")
    newest = tmp_path / "torn" / "checkpoints" / "server.3.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    api.resume(tmp_path / "torn")
    assert_same(whole, tmp_path / "torn")


def test_without_a_readable_checkpoint_resume_is_refused(data: str, tmp_path: Path) -> None:
    path = run(data, tmp_path / "a", method="fedavg", rounds=2)
    for file in (path / "checkpoints").iterdir():
        file.write_bytes(b"\0")
    with pytest.raises(UserError, match="start the run anew"):
        api.resume(path)


def test_resume_refuses_other_data(data: str, tmp_path: Path) -> None:
    path = run(data, tmp_path / "a", method="fedavg", rounds=1)
    arrays = make_arrays(240)
    np.savez(data, x=arrays.x[::-1], y=arrays.y[::-1])
    with pytest.raises(UserError, match="has changed"):
        api.resume(path)


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
    """The same ones every time, in the order of their ids, and only they are in clients.csv."""
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
