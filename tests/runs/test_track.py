"""`--track` against the real libraries, offline: what they hold afterwards, and that nothing of theirs stops a run."""

import csv
import json
import os
import signal
import sqlite3
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from pa3dfl import cli
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.options.config import TRACKERS, Config
from pa3dfl.experiments import api
from pa3dfl.runs import track
from pa3dfl.runs.track import Tracked, check
from pa3dfl.runs.track.base import numbers

# The smallest PNG: one pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501012718e366"
    "0000000049454e44ae426082"
)

needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has begun, and the trackers' stores beside it."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr(track, "PATIENCE", 300.0)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs" / "a"
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"method": "fedavg", "rounds": 4, "p_min": None}))
    return path


def play(path: Path, first: int, last: int) -> dict[str, Any]:
    """What a run writes in these rounds; even ones are evaluated."""
    record: dict[str, Any] = {}
    for rnd in range(first, last + 1):
        record = {"round": rnd, "train_loss": 1 / rnd, "missing": [2], "bytes_up": 10**6 * rnd}
        if rnd % 2 == 0:
            record |= {"test_accuracy": rnd / 10, "rules": {"kept": {"test_accuracy": rnd / 20}}}
            with (path / "clients.csv").open("w", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(("client", "r", "width", "test_accuracy"))
                rows.writerows([(0, 1.0, "1/4", rnd / 10), (1, 0.25, "1/8", "")])
        with (path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
    return record


def stop_and_resume(path: Path, name: str) -> None:
    """Two rounds and a crash; then the rounds 2 to 4, of which 2 is a repetition, and the end."""
    with Tracked(path, name) as tracked:
        tracked(play(path, 1, 2))
        wait_for(lambda: state(path, name).get("round") == 2)
    before = state(path, name)
    with Tracked(path, name) as tracked:
        lines = (path / "rounds.jsonl").read_text().splitlines()
        (path / "rounds.jsonl").write_text(lines[0] + "\n")
        tracked(play(path, 2, 3))
        tracked(play(path, 4, 4))
        (path / "learning_curve.png").write_bytes(PNG)
        (path / "summary.json").write_text(json.dumps({"rounds": 4, "test_accuracy": 0.4, "stopped_early": False}))
    assert state(path, name)["id"] == before["id"]
    assert state(path, name)["round"] == 4


def state(path: Path, name: str) -> dict[str, Any]:
    file = path / "track" / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def wait_for(condition: Any, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def events(path: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(path / "tensorboard"))
    found.Reload()
    return found


def series(found: Any, tag: str) -> list[tuple[int, float]]:
    return [(e.step, round(e.value, 6)) for e in found.Scalars(tag)]


def test_tensorboard(path: Path) -> None:
    pytest.importorskip("tensorboard")
    stop_and_resume(path, "tensorboard")
    found = events(path)
    assert series(found, "train_loss") == [(1, 1.0), (2, 0.5), (3, 0.333333), (4, 0.25)]
    assert series(found, "rules/kept/test_accuracy") == [(2, 0.1), (4, 0.2)]
    assert series(found, "missing") == [(rnd, 1.0) for rnd in (1, 2, 3, 4)]
    texts = {tag: found.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]}
    assert "method: fedavg" in texts["config"]
    assert "| 0 | 1.0 | 1/4 | 0.4 |" in texts["clients"]
    assert "| test_accuracy | 0.4 |" in texts["summary"]
    [picture] = found.Images("pictures/learning_curve")
    assert (picture.width, picture.height, picture.encoded_image_string) == (1, 1, PNG)
    assert found.Histograms("clients/test_accuracy")[-1].histogram_value.num == 1


def test_trackio(path: Path) -> None:
    pytest.importorskip("trackio")
    stop_and_resume(path, "trackio")
    [store] = (path.parents[1] / "trackio").glob("*.db")
    with closing(sqlite3.connect(store)) as db:
        [(name, config)] = [(n, json.loads(c)) for n, c in db.execute("select run_name, config from configs")]
        rows = db.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert {row[0] for row in rows} == {name}
    history = [{"step": step} | json.loads(metrics) for _, step, metrics in rows]
    assert name == state(path, "trackio")["id"]
    assert name.startswith("runs/a-")
    assert config["method"] == "fedavg"
    assert [(h["step"], h["train_loss"]) for h in history if "train_loss" in h] == [
        (1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3)), (4, 0.25),
    ]  # fmt: skip
    tables = [h["clients"] for h in history if "clients" in h]
    assert tables[-1]["_value"][0] == {"client": 0, "r": 1.0, "width": "1/4", "test_accuracy": 0.4}
    assert sum("pictures/learning_curve" in h for h in history) == 1
    assert [h["summary/test_accuracy"] for h in history if "summary/test_accuracy" in h] == [0.4]


def test_mlflow(path: Path) -> None:
    pytest.importorskip("mlflow")
    stop_and_resume(path, "mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{path.parents[1]}/mlflow.db")
    experiment = client.get_experiment_by_name("pa3dfl")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.run_name) == (state(path, "mlflow")["id"], "runs/a")
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == "fedavg"
    losses = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "train_loss")]
    assert losses == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3)), (4, 0.25)]
    assert run.data.metrics["summary/test_accuracy"] == 0.4
    files = {f.path for f in client.list_artifacts(run.info.run_id)}
    assert files == {"clients.csv", "pictures"}
    assert (
        Path(client.download_artifacts(run.info.run_id, "clients.csv")).read_text().splitlines()[1] == "0,1.0,1/4,0.4"
    )


def leveldb_records(log: bytes) -> Iterator[bytes]:
    """W&B's file after its header: blocks of 32 KiB of records: crc, length, kind (whole, first, middle, last)."""
    at, parts = 0, b""
    while at + 7 <= len(log):
        in_block = (at + 7) % 2**15  # the header of the file counts as part of the first block
        if 2**15 - in_block < 7:
            at += 2**15 - in_block
            continue
        length, kind = struct.unpack("<HB", log[at + 4 : at + 7])
        parts = log[at + 7 : at + 7 + length] if kind in (1, 2) else parts + log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts


def test_wandb(path: Path) -> None:
    pytest.importorskip("wandb")
    stop_and_resume(path, "wandb")
    from wandb.proto import wandb_internal_pb2

    history: list[dict[str, Any]] = []
    for file in sorted((path / "wandb").glob("offline-run-*/*.wandb")):  # one for each start, of the same run
        for data in leveldb_records(file.read_bytes()[7:]):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("run"):
                assert record.run.run_id == state(path, "wandb")["id"]
                assert {u.key: json.loads(u.value_json) for u in record.run.config.update}["method"] == "fedavg"
            if record.HasField("history"):
                items = record.history.item
                history.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    assert [(h["_step"], h["train_loss"]) for h in history if "train_loss" in h] == [
        (1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3)), (4, 0.25),
    ]  # fmt: skip
    kinds = Counter(f"{k}: {v}" for h in history for k, v in h.items() if k.endswith("_type"))
    assert kinds == {"clients/_type: table-file": 2, "pictures/learning_curve/_type: image-file": 1}
    [table] = path.glob("wandb/offline-run-*/files/media/table/clients_4_*.json")
    assert json.loads(table.read_text())["data"] == [[0, 1.0, "1/4", 0.4], [1, 0.25, "1/8", None]]


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
