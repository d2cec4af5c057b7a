"""Models to take away: each file predicts what was tested, and what was not tested is refused."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pa3dfl
from conftest import make_arrays
from pa3dfl import cli
from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import wire
from pa3dfl.data import load_own
from pa3dfl.experiments import api
from pa3dfl.experiments.export import export
from pa3dfl.federation.checkpoint import Checkpoints
from pa3dfl.runs import formats, personal
from pa3dfl.runs.format import RunDirectory

CLIENTS = 30
SETTING = {
    "model": "cnn-fashion", "clients": CLIENTS, "per_round": 10, "epochs": 1, "batch": 10, "lr": 0.1, "rounds": 3,
    "eval_every": 1, "threads": 1, "setting": "levels:1/4,1/16,1/256", "p_min": "1/16", "device": "cpu", "hidden": 8,
    "patience": 9,
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of thirty clients, in `run`, on `data.npz`."""
    folder, arrays = tmp_path_factory.mktemp("export"), make_arrays(900)
    np.savez(folder / "data.npz", x=arrays.x, y=arrays.y)
    api.run(**SETTING, data=str(folder / "data.npz"), out=str(folder / "run"))
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(trained / "run", tmp_path / "run")
    return tmp_path / "run"


def row(path: Path, client: int) -> dict[str, Any]:
    return next(r for r in RunDirectory(path).read_clients() if r["client"] == client)


def test_exported_models_of_thirty_clients_have_the_tested_accuracy(trained: Path, tmp_path: Path) -> None:
    """Of every exported file, read back; at three widths and several α."""
    records = list(export(trained / "run", out=tmp_path))
    rows = RunDirectory(trained / "run").read_clients()
    assert [r["client"] for r in records] == [r["client"] for r in rows] == list(range(CLIENTS))
    assert [r["file_accuracy"] for r in records] == [r["test_accuracy"] for r in rows]
    assert {r["width"] for r in records} == {"1/2", "1/4", "1/16"}
    assert len({r["alpha"] for r in records}) > 1
    assert len({r["file_accuracy"] for r in records}) > 1


@pytest.mark.parametrize("form", formats.FILES)
def test_an_exported_file_predicts_as_the_network_does(form: str, trained: Path, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="ONNX is not installed: pip install 'pa3dfl[onnx]'")
        pytest.importorskip("onnxscript", reason="ONNX is not installed: pip install 'pa3dfl[onnx]'")
    [record] = export(trained / "run", [7], form, tmp_path)
    assert record["bytes"] == Path(record["path"]).stat().st_size
    arrays = load_own(trained / "data.npz")
    network = pa3dfl.load(trained / "run").model(7)
    x = personal.inputs(record, arrays, torch.arange(7))
    for model in (tmp_path / "client-7", tmp_path / "client-7" / "model.json", Path(record["path"])):
        predict = personal.read(model).predict
        for n in (1, 2, 7):
            torch.testing.assert_close(predict(x[:n]), network(x[:n]), rtol=0, atol=1e-5)
    assert cli.main(["predict", record["path"], str(trained / "data.npz"), "--out", str(tmp_path / "said.npz")]) == 0
    with np.load(tmp_path / "said.npz") as said:
        everything = personal.inputs(record, arrays, torch.arange(len(arrays.y)))
        np.testing.assert_allclose(said["probability"], network(everything).softmax(1).numpy(), atol=1e-5)


def test_a_program_runs_without_this_package(trained: Path, tmp_path: Path) -> None:
    [record] = export(trained / "run", [7], "torch", tmp_path)
    program = torch.export.load(record["path"])
    assert "pa3dfl" not in str(program.graph)
    shapes = {tuple(v.shape) for v in program.state_dict.values()}
    plain = {tuple(p.shape) for p in pa3dfl.load(trained / "run").model(7).parameters()}
    assert shapes == plain  # no factors


def test_a_loaded_run_gives_networks(trained: Path) -> None:
    loaded = pa3dfl.load(trained / "run")
    network = loaded.model(3)
    assert isinstance(network, torch.nn.Module)
    evaluations = loaded.evaluations
    assert {"round", "client", "adapted", "received", "kept", "loss", "alpha"} == set(evaluations.columns)
    assert len(evaluations) == 3 * CLIENTS == len(loaded.rounds) * CLIENTS
    best = evaluations[evaluations["round"] == loaded.summary["best_round"]].set_index("client")
    for client in RunDirectory(trained / "run").read_clients():
        assert best.loc[client["client"], "adapted"] == pytest.approx(client["test_accuracy"])
        assert best.loc[client["client"], "alpha"] == pytest.approx(float(client["alpha"]))


def test_another_model_than_the_tested_one_is_refused(run: Path, tmp_path: Path) -> None:
    """One entry of the server's best state changes: no file is left behind."""
    checkpoints = Checkpoints(run / "checkpoints")
    checkpoints.facts()
    file = checkpoints.folder / str(checkpoints.best[7].server)
    tree = {k: v if "theta_u" not in k else -v for k, v in checkpoints.read(file.name, torch.device("cpu")).items()}
    from safetensors.torch import save_file

    save_file(wire(tree), file)
    with pytest.raises(UserError, match=r"client \d+'s model, computed again, has accuracy"):
        list(export(run, out=tmp_path / "out"))
    assert len(list((tmp_path / "out").rglob("*.safetensors"))) < CLIENTS


def test_a_file_with_another_accuracy_is_removed(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pa3dfl.experiments.export._accuracy", lambda *_: 2.0)
    with pytest.raises(UserError, match=r"model.safetensors has test accuracy 2.0000, the tested model had"):
        list(export(trained / "run", [7], out=tmp_path))
    assert not list(tmp_path.rglob("*.*"))


def test_a_method_that_predicts_in_a_way_of_its_own(trained: Path, tmp_path: Path) -> None:
    """Its gate looks at the batch: a prediction needs the method, and a graph cannot be made."""
    small = {k: v for k, v in SETTING.items() if k != "hidden"} | {"rounds": 1, "clients": 3, "per_round": 1}
    api.run(**small, method="pfedgate", data=str(trained / "data.npz"), out=str(tmp_path / "run"))
    [record] = export(tmp_path / "run", [1])
    assert record["file_accuracy"] == row(tmp_path / "run", 1)["test_accuracy"]
    with pytest.raises(UserError, match="a model of pfedgate is no plain network, because its weights depend on the b"):
        list(export(tmp_path / "run", [1], "onnx", tmp_path / "out"))
    assert isinstance(pa3dfl.load(tmp_path / "run").model(1), torch.nn.Module)


def test_narrower_products_are_reported(trained: Path, tmp_path: Path) -> None:
    """A run in bfloat16 tests in bfloat16; its file predicts in float32 and may differ on a few rows."""
    small = SETTING | {"rounds": 1, "clients": 3, "per_round": 1, "precision": "bf16"}
    api.run(**small, data=str(trained / "data.npz"), out=str(tmp_path / "run"))
    [record] = export(tmp_path / "run", [1])
    assert record["test_accuracy"] == row(tmp_path / "run", 1)["test_accuracy"]
    assert 0 <= record["file_accuracy"] <= 1


def test_without_the_extra_the_error_says_what_to_install(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"ONNX needs packages that are not installed .*: pip install 'pa3dfl\[onnx\]'"):
        list(export(trained / "run", [7], "onnx", tmp_path))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--format", "pickle"], "format is 'pickle': expected one of safetensors, onnx, torch"),
        (["--clients", "30"], "there is no client 30: this run has clients 0 to 29"),
        (["--clients", "3,x"], "clients is 'x': expected a whole number"),
        (["--clients", "-1"], "there is no client -1"),
    ],
)
def test_wrong_calls(words: list[str], reason: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(trained / "run"), *words]) == 2
    assert reason in capsys.readouterr().err


def test_folders_that_are_no_run_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run directory: it has no config\.yaml"):
        list(export(tmp_path))
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text("".join(line for line in text.splitlines(True) if "fingerprint" not in line))
    with pytest.raises(UserError, match="the run of a deployment, whose models stay on the nodes: give a node's fol"):
        list(export(run))
    (run / "config.yaml").write_text(text.replace("data_fingerprint: ", "data_fingerprint: x"))
    with pytest.raises(UserError, match="has changed since the run: restore it"):
        list(export(run))


def test_damaged_files_are_refused(trained: Path, tmp_path: Path) -> None:
    list(export(trained / "run", [7], out=tmp_path))
    folder = tmp_path / "client-7"
    with pytest.raises(UserError, match="holds an exported model: give the run directory or the node's folder"):
        list(export(folder))
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"model.safetensors cannot be read: SafetensorError"):
        personal.read(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="there is no file"):
        personal.read(folder)
    card = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(card | {"format": "tar"}))
    with pytest.raises(UserError, match="names the format 'tar': expected one of safetensors"):
        personal.read(folder)
