"""`--track`: a tracker that is stopped, fails, hangs or is missing never stops a run."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tracked_run import begun, events, play, series, state, wait_for

from pa3dfl import cli
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.options.config import TRACKERS, Config
from pa3dfl.experiments import api
from pa3dfl.runs import track
from pa3dfl.runs.track import Tracked, check
from pa3dfl.runs.track.base import numbers

needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return begun(tmp_path, monkeypatch)


@needs_tensorboard
def test_a_training_that_is_stopped_goes_on_in_the_same_tracked_run(workspace: Path, tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    config = Config(data="tiny.npz", model="cnn-fashion", clients=6, rounds=3, epochs=1, eval_every=1, per_round=3,
                    batch=8, device="cpu", threads=1, track="tensorboard", out=str(out))  # fmt: skip
    with pytest.raises(Interrupted):
        api.run(config, followers=[stop])
    summary = api.resume(out)
    found = events(out)
    assert [step for step, _ in series(found, "train_loss")] == [1, 2, 3]
    assert series(found, "test_accuracy")[-1][0] == 3
    assert {"pictures/learning_curve", "pictures/accuracy_by_capacity"} <= set(found.Tags()["images"])
    assert summary["rounds"] == 3


@needs_tensorboard
def test_a_tracker_that_cannot_start_ends_no_run(path: Path) -> None:
    (path / "tensorboard").write_text("in the way")
    said: list[str] = []
    with Tracked(path, "tensorboard", said.append) as tracked:
        tracked(play(path, 1, 2))
    [line] = said
    assert line.startswith("tensorboard failed, the run goes on without it: ")
    assert "pa3dfl resume" in line
    (path / "tensorboard").unlink()
    with Tracked(path, "tensorboard", said.append) as tracked:
        tracked(play(path, 3, 3))
    assert len(said) == 1
    assert [step for step, _ in series(events(path), "train_loss")] == [1, 2, 3]  # what was missing came later


@needs_tensorboard
def test_a_tracker_that_fails_is_reported_once(path: Path) -> None:
    said: list[str] = []
    with Tracked(path, "tensorboard", said.append) as tracked:
        tracked(play(path, 1, 1))
        wait_for(lambda: state(path, "tensorboard"))
        [process] = tracked._processes.values()
        process.kill()
        process.wait()
        for rnd in (2, 3, 4):
            tracked(play(path, rnd, rnd))
    assert len(said) == 1


@needs_tensorboard
def test_a_tracker_that_hangs_does_not_delay_rounds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track, "PATIENCE", 0.1)
    said: list[str] = []
    with Tracked(path, "tensorboard", said.append) as tracked:
        [process] = tracked._processes.values()
        os.kill(process.pid, signal.SIGSTOP)
        record = play(path, 1, 1)
        for _ in range(70_000):  # more than a pipe holds
            tracked(record)
    [line] = said
    assert "still sending after" in line
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(300) == 0  # it went on alone
    assert series(events(path), "train_loss") == [(1, 1.0)]


@needs_tensorboard
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(",".join(name for name in TRACKERS if find_spec(name)))
    monkeypatch.setitem(track.NEEDS, "wandb", "wandb_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wandb_that_nobody_has").mkdir()  # as W&B leaves a folder `wandb` where it ran
    with pytest.raises(UserError, match=r"pip install 'pa3dfl\[wandb\]'"):
        check("tensorboard, wandb")


def test_names_are_checked_before_anything_is_done(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["run", "--track", "tensorbord", "--out", str(tmp_path / "a")]) == 2
    assert "there is no tracker 'tensorbord', did you mean tensorboard?" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
    assert Config(track="wandb").hash() == Config().hash()


def test_numbers_of_a_record() -> None:
    record = {"loss": 1, "missing": [3, 4], "rules": {"kept": {"a": 0.5}}, "name": "x", "val": None, "early": True}
    assert numbers(record) == {"loss": 1.0, "missing": 2.0, "rules/kept/a": 0.5, "early": 1.0}
