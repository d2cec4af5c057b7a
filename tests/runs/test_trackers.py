"""`--track` with the real libraries, offline: what each of them holds after a run that was stopped and resumed."""

import json
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tracked_run import begun, events, play, series, state, wait_for

from pa3dfl.runs.track import Tracked


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return begun(tmp_path, monkeypatch)


# The smallest PNG: one pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501012718e366"
    "0000000049454e44ae426082"
)


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
