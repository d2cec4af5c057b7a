"""Commands that train: parseable output, files that say what was done."""

import json
import shutil
from pathlib import Path

import pytest

from workspace import RUN, Capture, printed

pytestmark = pytest.mark.usefixtures("workspace")


def test_run(capsys: Capture, tmp_path: Path) -> None:
    """Flags override the file; equal seeds give equal runs; the printed summary is the stored one."""
    file, out = tmp_path / "run.yaml", tmp_path / "run"
    file.write_text("method: fedavg\nrounds: 9\nseed: 3\nlr: 0.05\naugment:\n")
    summary = printed(capsys, *RUN, str(file), "--out", str(out), "--augment")
    facts = ("method", "data", "setting", "model", "seed", "rounds", "best_round", "device")
    assert {k: summary[k] for k in facts} == {
        "method": "fedavg", "data": "tiny.npz", "setting": "hetero", "model": "cnn-fashion", "seed": 3, "rounds": 1,
        "best_round": 1, "device": "cpu",
    }  # fmt: skip
    assert 0 <= summary["worst_decile_accuracy"] <= summary["test_accuracy"] <= 1
    assert json.loads((out / "summary.json").read_text()) == summary
    config = (out / "config.yaml").read_text()
    assert "augment: true" in config
    assert "lr: 0.05" in config
    assert len((out / "clients.csv").read_text().splitlines()) == 7
    again = printed(capsys, "run", str(out / "config.yaml"), "--overwrite")
    changing = {"seconds"}
    assert {k: v for k, v in again.items() if k not in changing} == {k: summary[k] for k in again if k not in changing}


def test_run_with_natural_partition(capsys: Capture, tmp_path: Path) -> None:
    argv = [a for a in RUN if a not in ("--clients", "6")]
    printed(capsys, *argv, "--data", "owned.npz", "--method", "local-only", "--out", str(tmp_path / "run"))
    rows = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert [row.split(",")[4:7] for row in rows[1:]] == [["16", "1", "1"]] * 5


def test_run_into_an_empty_folder(capsys: Capture, tmp_path: Path) -> None:
    assert printed(capsys, *RUN, "--method", "fedavg", "--out", str(tmp_path))["path"] == str(tmp_path)


def test_resume_of_a_finished_run_prints_the_same_summary(capsys: Capture, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree("done", run)
    before = json.loads((run / "summary.json").read_text())
    after = printed(capsys, "resume", str(run))
    assert after["path"] == str(run)
    assert {k: v for k, v in after.items() if k != "path"} == {k: v for k, v in before.items() if k != "path"}
