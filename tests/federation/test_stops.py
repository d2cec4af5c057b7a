"""A run that is stopped or killed loses at most the running round; resumed, it ends with the same bits."""

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
from short_runs import assert_same, rounds, run, stop_at

from conftest import TINY, make_arrays
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.experiments import api
from pa3dfl.federation.checkpoint import Checkpoints
from pa3dfl.methods import registry


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
