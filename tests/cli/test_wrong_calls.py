"""One line and exit code 2 for whatever cannot be."""

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pa3dfl.data import sources
from workspace import RUN, Capture, refused

pytestmark = pytest.mark.usefixtures("workspace")

WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "command": (("train",), "unknown command 'train': expected one of run, resume, report, page, compare, tune,"),
    "flag": ((*RUN, "--round", "3"), "unknown argument '--round', did you mean --rounds?; see `pa3dfl run --help`"),
    "flag=": ((*RUN, "--per-roung=3"), "unknown argument '--per-roung=3', did you mean --per-round?"),
    "flag of another method": (
        (*RUN, "--method", "fedavg", "--embedding", "3"), "unknown argument '--embedding'"),
    "flag without a value": (("run", "--rounds"), "argument --rounds: expected one argument; see `pa3dfl run --help`"),
    "flag of data": (("data", "--partitoin", "iid"), "unknown argument '--partitoin', did you mean --partition?"),
    "flag of methods": (("methods", "--jsno"), "unknown argument '--jsno', did you mean --json?"),
    "word": (("run", "tiny.npz"), "config 'tiny.npz' is not a .yaml file: options start with dashes"),
    "value": ((*RUN, "--rounds", "many"), "rounds is 'many': expected a whole number"),
    "value below": ((*RUN, "--rounds", "0"), "rounds is 0: expected at least 1"),
    "negative value": ((*RUN, "--seed", "-1"), "seed is -1: expected at least 0"),
    "choice": ((*RUN, "--engine", "warp"), "engine is 'warp': expected one of auto, sequential, threaded"),
    "method": ((*RUN, "--method", "fedavgg"), "unknown method 'fedavgg': expected one of ditto, fedavg,"),
    "method meant": ((*RUN, "--method=fedavgg"), "; did you mean fedavg?"),
    "method of one's own": ((*RUN, "--method", "climine:make"), "'climine:make' is not a subclass of pa3dfl.met"),
    "model": ((*RUN, "--model", "cnn"), "unknown model 'cnn': expected one of cnn-fashion, cnn-cifar100, resnet18-gn"),
    "model not importable": ((*RUN, "--model", "nowhere:make"), "model 'nowhere:make' could not be imported (Mod"),
    "model of one's own": ((*RUN, "--model", "climine:make"), "'climine:make' gave a int: expected a torch.nn"),
    "data": ((*RUN, "--data", "cifar"), "unknown data 'cifar', did you mean cifar10?: expected fashion-mnist-10k,"),
    "data file": ((*RUN, "--data", "no.npz"), "there is no file no.npz"),
    "data file broken": ((*RUN, "--data", "bad.npz"), "bad.npz cannot be read (not a .npz archive)"),
    "data folder": ((*RUN, "--data", "cifar10", "--data-dir", "nowhere"), "the data folder nowhere is not a folder"),
    "setting": ((*RUN, "--setting", "rich"), "unknown setting 'rich': expected ideal, hetero, levels:1,1/4,1/16"),
    "setting with a tail": ((*RUN, "--setting", "hetero:0.5"), "unknown setting 'hetero:0.5'"),
    "levels": ((*RUN, "--setting", "levels:1,x"), "capacity 'x' is not a number"),
    "list": ((*RUN, "--setting", "list:1,1"), "the list of capacities has 2 capacities for 6 clients"),
    "csv absent": ((*RUN, "--setting", "no.csv"), "capacities no.csv cannot be read: No such file or directory"),
    "csv short": ((*RUN, "--setting", "short.csv"), "short.csv has 2 capacities for 6 clients: expected one each"),
    "csv columns": ((*RUN, "--setting", "columns.csv"), "columns.csv must have the columns client and r"),
    "csv range": ((*RUN, "--setting", "range.csv"), "range.csv: capacity 2 is outside (0, 1]"),
    "config absent": (("run", "no.yaml"), "config no.yaml cannot be read: No such file or directory"),
    "config broken": (("run", "broken.yaml"), "config broken.yaml is not YAML: while parsing a flow sequence"),
    "config a list": (("run", "list.yaml"), "config list.yaml must be a mapping of option: value"),
    "config empty": (("run", "empty.yaml"), "config empty.yaml must be a mapping of option: value"),
    "config key": (("run", "key.yaml"), "unknown option 'round': did you mean rounds?"),
    "config key 1": (("run", "number.yaml"), "unknown option 1: see `pa3dfl run --help`"),
    "config key on": (("run", "true.yaml"), "unknown option True: see `pa3dfl run --help`"),
    "config key overwrite": (("run", "overwrite.yaml"), "unknown option 'overwrite'"),
    "config key config": (("run", "config.yaml"), "unknown option 'config'"),
    "config value": (("run", "value.yaml"), "rounds is 'many': expected a whole number"),
    "config method": (("run", "method.yaml"), "unknown method 'nothing'"),
    "config date": (("run", "date.yaml"), "config date.yaml is not YAML: month must be in 1..12"),
    "config twice": (("run", "key.yaml", "list.yaml"), "unknown argument 'list.yaml'"),
    "out a file": ((*RUN, "--out", "file"), "file is a file: choose another --out"),
    "out in a file": ((*RUN, "--out", "file/run"), "run directory file/run cannot be written: Not a directory"),
    "out not empty": ((*RUN, "--out", "done"), "done is not empty: resume that run with `pa3dfl resume done`, choose"),
    "out of others": ((*RUN, "--out", "full", "--overwrite"), "full is not a run directory: it will not be"),
    "resume nothing": (("resume", "nowhere"), "nowhere is not a run directory: it has no config.yaml"),
    "resume a folder": (("resume", "full"), "full is not a run directory: it has no config.yaml"),
    "resume a file": (("resume", "file"), "file is not a run directory: it has no config.yaml"),
    "resume what": (("resume",), "the following arguments are required: DIR; see `pa3dfl resume --help`"),
    "report what": (("report",), "the following arguments are required: DIR; see `pa3dfl report --help`"),
    "report nothing": (("report", "void"), "no run directories in void: a run directory holds a rounds.jsonl"),
    "report nowhere": (("report", "nowhere"), "nowhere is not a folder: give a run directory or a folder of them"),
    "device": ((*RUN, "--device", "gpu"), "unknown device 'gpu': expected auto, cpu or cuda"),
    "p_min": ((*RUN, "--p-min", "1/7"), "model 'cnn-fashion': dimension 0 of conv1.weight is 32 wide, and 32 × 1/7 = "),
    "p_min not 1/n": ((*RUN, "--p-min", "3/16"), "p_min is 3/16: expected 1 over a whole number, such as 1/16"),
    "natural": ((*RUN, "--partition", "natural"), "partition 'natural' needs data with a client column: this data has"),
    "natural, others": ((*RUN, "--data", "owned.npz"), "partition 'natural': the data has 5 clients; say --clients 5"),
    "too many clients": ((*RUN, "--clients", "40"), "client 10 would own 2 rows: at least 3 are needed"),
    "more clients than rows": ((*RUN, "--clients", "1000"), "client 0 would own 1 row: at least 3 are needed"),
    "classes": ((*RUN, "--partition", "classes", "--classes-per-client", "5"), "classes_per_client is 5: expected"),
    "data of nothing": (("data", "mnist"), "unknown data 'mnist'"),
    "data clients": (("data", "tiny.npz", "--clients", "x"), "clients is 'x': expected a whole number"),
    "cost batch": (("cost", "--batch", "0"), "batch is 0: expected at least 1"),
    "cost p_min": (("cost", "--p-min", "0"), "p_min 0 is outside (0, 1]"),
    "cost method": (("cost", "--method", "sgd"), "unknown method 'sgd'"),
    "cost model": (("cost", "--model", "cnn-fasion"), "did you mean cnn-fashion?"),
    "cost width": (("cost", "--width", "1/3"), "width 1/3 is not one of the multiples of p_min: expected 1/16, … or 1"),
    "cost width 0": (("cost", "--width", "0"), "width 0 is outside (0, 1]"),
    "cost device": (("cost", "--memory", "--device", "tpu"), "unknown device 'tpu': expected auto, cpu or cuda"),
    "cost shape": (("cost", "--input-shape", "1,a,2"), "input-shape is 'a': expected a whole number"),
    "cost shape 0": (("cost", "--input-shape", "1,0,2"), "10 classes of inputs (1, 0, 2): expected at least 2 classes"),
    "cost shape small": (("cost", "--input-shape", "1,2,2"), "cannot take a batch of shape (1, 2, 2)"),
    "cost shape flat": (("cost", "--input-shape", "9"), "it needs images (channels, height, width)"),
    "cost classes": (("cost", "--classes", "1"), "1 class of inputs (1, 28, 28): expected at least 2 classes"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused_in_one_line(case: str, capsys: Capture) -> None:
    argv, complaint = WRONG[case]
    assert complaint in refused(capsys, *argv)


def test_wrong_calls_change_no_files(workspace: Path) -> None:
    assert not (workspace / "runs").exists()
    assert (workspace / "full" / "precious").read_text() == "mine"
    assert (workspace / "file").read_text() == "in the way"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu(capsys: Capture) -> None:
    complaint = "device 'cuda' is not available: no CUDA GPU was found; use --device cpu"
    assert refused(capsys, *RUN, "--device", "cuda") == complaint


def test_missing_data_without_a_network(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        mirror = f"http://127.0.0.1:{s.getsockname()[1]}"
    monkeypatch.setenv("PA3DFL_MIRROR", mirror)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("PA3DFL_DATA", raising=False)
    monkeypatch.setattr(sources, "_DEBIAN", tmp_path / "debian")
    for argv in (("run", "--data", "cifar100"), ("data", "cifar100")):
        line = refused(capsys, *argv)
        assert line.startswith(f"cifar100 was not found in {tmp_path}/pa3dfl, ")
        assert f"could not be downloaded ({mirror}/cifar-100-binary.tar.gz: " in line
        assert "Connection refused" in line
        assert line.endswith("put cifar-100-binary.tar.gz or cifar100.npz into one of them or pass --data-dir")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda run: truncate(run / "checkpoints" / "state.json"), "checkpoints can be read (state.json: "),
        (lambda run: truncate(run / "checkpoints" / "server.1.safetensors"), "checkpoints can be read (state.json: "),
        (lambda run: (run / "checkpoints" / "server.1.safetensors").unlink(), "checkpoints can be read (state.json: "),
        (lambda run: (run / "config.yaml").write_text("a: [1\n"), "config.yaml is not YAML: "),
        (lambda run: (run / "config.yaml").write_text(""), "config.yaml must be a mapping of option: value"),
        (lambda run: (run / "config.yaml").write_bytes(b"\xff\x00"), "config.yaml is not YAML: "),
        (lambda run: (run / "config.yaml").write_text("rounds: x\n"), "rounds is 'x': expected a whole number"),
        (lambda run: (run / "config.yaml").write_text("data: tiny.npz\ndata_fingerprint: a\n"), "has changed since"),
    ],
    ids=["manifest", "tensors", "no tensors", "yaml", "no config", "bytes", "value", "other data"],
)  # fmt: skip
def test_a_spoilt_run_cannot_be_resumed(
    spoil: Callable[[Path], object], complaint: str, capsys: Capture, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree("done", run)
    spoil(run)
    assert complaint in refused(capsys, "resume", str(run))


@pytest.mark.parametrize("name", ["rounds.jsonl", "summary.json", "clients.csv"])
def test_a_spoilt_run_cannot_be_reported(name: str, capsys: Capture, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree("done", run)
    (run / name).write_text("nonsense\n")
    assert f"{run}/{name}" in refused(capsys, "report", str(run))
