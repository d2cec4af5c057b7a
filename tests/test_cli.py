"""The command line: one line and exit code 2 for whatever cannot be, parseable output for what can."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pa3dfl import cli, methods
from pa3dfl.data import NAMES, sources
from pa3dfl.errors import UserError
from pa3dfl.federation import Interrupted

Capture = pytest.CaptureFixture[str]

RUN = ("run", "--data", "tiny.npz", "--clients", "6", "--rounds", "1", "--epochs", "1", "--batch", "8",
       "--model", "cnn-fashion", "--device", "cpu", "--threads", "1")  # fmt: skip
FILES = {
    "broken.yaml": "rounds: [1\nseed: 2\n",
    "list.yaml": "- rounds\n- 3\n",
    "empty.yaml": "",
    "key.yaml": "round: 3\n",
    "number.yaml": "1: 3\n",
    "true.yaml": "on: 3\n",
    "overwrite.yaml": "overwrite: true\n",
    "config.yaml": "config: 3\n",
    "value.yaml": "rounds: many\n",
    "method.yaml": "method: nothing\n",
    "date.yaml": "seed: 2026-13-45\n",
    "short.csv": "client,r\n0,1\n1,1\n",
    "columns.csv": "name,r\n0,1\n",
    "range.csv": "client,r\n" + "".join(f"{i},{1 + i}\n" for i in range(6)),
    "file": "in the way",
    "climine.py": "def make(width):\n    return 3\n",
    "bad.npz": "not an archive",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data, one finished run in `done`, and many files that are not what they should be."""
    path = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    y = np.arange(90) % 4
    x = np.clip(rng.integers(0, 256, (4, 1, 8, 8))[y] + rng.normal(0, 60, (90, 1, 8, 8)), 0, 255).astype(np.uint8)
    np.savez(path / "tiny.npz", x=x, y=y)
    np.savez(path / "owned.npz", x=x, y=y, client=np.arange(90) % 5)
    for name, content in FILES.items():
        (path / name).write_text(content)
    (path / "full").mkdir()
    (path / "full" / "precious").write_text("mine")
    (path / "void").mkdir()
    here = Path.cwd()
    os.chdir(path)
    try:
        assert cli.main([*RUN, "--out", "done"]) == 0
    finally:
        os.chdir(here)
    return path


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    torch.set_num_threads(threads)


def refused(capsys: Capture, *argv: str) -> str:
    """The one line that a wrong call gets."""
    capsys.readouterr()
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pa3dfl: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.removeprefix("pa3dfl: ").strip()


def printed(capsys: Capture, *argv: str) -> Any:
    capsys.readouterr()
    assert cli.main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "command": (("train",), "unknown command 'train': expected one of run, resume, report, compare, methods, cost"),
    "flag": ((*RUN, "--round", "3"), "unknown argument '--round', did you mean --rounds?; see `pa3dfl run --help`"),
    "flag=": ((*RUN, "--per-roung=3"), "unknown argument '--per-roung=3', did you mean --per-round?"),
    "flag of another method": (
        (*RUN, "--method", "fedavg", "--embedding", "3"), "unknown argument '--embedding'"),
    "flag without a value": (("run", "--rounds"), "argument --rounds: expected one argument; see `pa3dfl run --help`"),
    "flag of data": (("data", "--partitoin", "iid"), "unknown argument '--partitoin', did you mean --partition?"),
    "flag of methods": (("methods", "--jsno"), "unknown argument '--jsno', did you mean --json?"),
    "word": (("run", "tiny.npz"), "config 'tiny.npz' is not a .yaml file: options are given with dashes"),
    "value": ((*RUN, "--rounds", "many"), "rounds is 'many': expected a whole number"),
    "value below": ((*RUN, "--rounds", "0"), "rounds is 0: expected at least 1"),
    "negative value": ((*RUN, "--seed", "-1"), "seed is -1: expected at least 0"),
    "choice": ((*RUN, "--engine", "warp"), "engine is 'warp': expected one of auto, sequential, captured"),
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
    "out not empty": ((*RUN, "--out", "done"), "done is not empty: go on with `pa3dfl resume done`, choose another"),
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
    "more clients than rows": ((*RUN, "--clients", "1000"), "client 0 would own 1 rows: at least 3 are needed"),
    "classes": ((*RUN, "--partition", "classes", "--classes-per-client", "5"), "classes_per_client is 5: expected"),
    "data of nothing": (("data", "mnist"), "unknown data 'mnist'"),
    "data clients": (("data", "tiny.npz", "--clients", "x"), "clients is 'x': expected a whole number"),
    "cost batch": (("cost", "--batch", "0"), "batch is 0: expected a whole number of at least 1"),
    "cost p_min": (("cost", "--p-min", "0"), "p_min 0 is outside (0, 1]"),
    "cost method": (("cost", "--method", "sgd"), "unknown method 'sgd'"),
    "cost model": (("cost", "--model", "cnn-fasion"), "did you mean cnn-fashion?"),
    "cost shape": (("cost", "--input-shape", "1,a,2"), "input-shape is 'a': expected a whole number"),
    "cost shape 0": (("cost", "--input-shape", "1,0,2"), "10 classes of inputs (1, 0, 2): expected at least 2 classes"),
    "cost shape small": (("cost", "--input-shape", "1,2,2"), "cannot take a batch of shape (1, 2, 2)"),
    "cost shape flat": (("cost", "--input-shape", "9"), "it needs images (channels, height, width)"),
    "cost classes": (("cost", "--classes", "1"), "1 classes of inputs (1, 28, 28): expected at least 2 classes"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_one_line(case: str, capsys: Capture) -> None:
    argv, complaint = WRONG[case]
    assert complaint in refused(capsys, *argv)


def test_nothing_wrong_left_a_trace(folder: Path) -> None:
    assert not (folder / "runs").exists()
    assert (folder / "full" / "precious").read_text() == "mine"
    assert (folder / "file").read_text() == "in the way"


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


def test_whatever_is_said_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for messages of other people's code, and with code 1 for the system's refusals."""
    for error, code, line in (
        (UserError("a\n  b\n"), 2, "pa3dfl: a b\n"),
        (OSError(28, "No space left on device", "x/y"), 1, "pa3dfl: x/y: No space left on device\n"),
        (KeyboardInterrupt(), 130, "pa3dfl: stopped\n"),
        (Interrupted(7, Path("x")), 130, "pa3dfl: stopped; 7 rounds are kept, `pa3dfl resume x` goes on from there\n"),
    ):

        def fail(argv: list[str], error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(cli, "COMMANDS", {"run": fail})
        assert cli.main(["run"]) == code
        assert capsys.readouterr().err == line


# --- as a program ---


def program(*argv: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "pa3dfl", *argv], capture_output=True, text=True, env=env, timeout=120)


def test_the_program_refuses_with_code_2_and_one_line() -> None:
    """Warnings of libraries would show here, unlike in this process."""
    done = program(*RUN, "--p-min", "1/64")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(
        "pa3dfl: model 'cnn-fashion': dimension 0 of conv1.weight is 32 wide, and 32 × 1/64 = 0.5"
    )
    assert done.stderr.count("\n") == 1


def test_the_program_succeeds_with_code_0(tmp_path: Path) -> None:
    done = program(*RUN, "--method", "fedavg", "--out", str(tmp_path / "run"), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["method"] == "fedavg"
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["fedavg on tiny.npz"]


# --- what works ---


def test_help_and_version(capsys: Capture) -> None:
    assert cli.main([]) == 2
    usage = capsys.readouterr().out
    assert cli.main(["--help"]) == cli.main(["-h"]) == 0
    assert capsys.readouterr().out == 2 * usage
    assert all(f"pa3dfl {command}" in usage for command in cli.COMMANDS)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pa3dfl ")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: pa3dfl {command}")
    assert "--json" in out or command == "deploy"


def test_help_shows_the_options_of_the_method_asked_for(capsys: Capture) -> None:
    for argv, own in ((["run", "--method", "ditto", "--help"], "ditto"), (["run", "--help"], "pa3dfl")):
        with pytest.raises(SystemExit):
            cli.main(argv)
        assert f"options of {own}" in capsys.readouterr().out


def test_methods(capsys: Capture) -> None:
    records = printed(capsys, "methods")
    assert [r["method"] for r in records] == list(methods.registry())
    assert {"pa3dfl", "fedavg", "local-only", "heterofl"} <= {r["method"] for r in records}
    [own] = [r for r in records if r["method"] == "pa3dfl"]
    assert own["options"]["lam"] == 1e-3
    assert cli.main(["methods"]) == 0
    assert own["summary"] in capsys.readouterr().out


def test_data(capsys: Capture) -> None:
    records = printed(capsys, "data")
    assert [r["data"] for r in records] == list(NAMES)
    assert Path(records[0]["found"]).is_dir()
    assert cli.main(["data"]) == 0
    assert "looked in: " in capsys.readouterr().out


def test_data_of_a_name(capsys: Capture, tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    flags = ("--clients", "9", "--partition", "classes", "--classes-per-client", "2", "--out", str(picture))
    [record] = printed(capsys, "data", "tiny.npz", *flags)
    assert {k: record[k] for k in ("data", "partition", "clients", "rows", "classes_per_client")} == {
        "data": "tiny.npz", "partition": "classes", "clients": 9, "rows": 90, "classes_per_client": 2.0,
    }  # fmt: skip
    assert record["smallest_client"] <= 10 <= record["largest_client"]
    assert 0.5 <= record["largest_class_share"] < 0.6
    assert picture.read_bytes()[:4] == b"\x89PNG"
    [natural] = printed(capsys, "data", "owned.npz", "--out", str(picture))
    assert (natural["partition"], natural["clients"], natural["smallest_client"]) == ("natural", 5, 18)


def test_data_with_clients_that_own_nothing(capsys: Capture, tmp_path: Path) -> None:
    [record] = printed(capsys, "data", "tiny.npz", "--clients", "180", "--out", str(tmp_path / "p.png"))
    assert (record["smallest_client"], record["largest_client"], record["largest_class_share"]) == (0, 1, 0.5)


def test_run(capsys: Capture, tmp_path: Path) -> None:
    """Flags over file; a run is the same from the same seed, and what was printed is what is kept."""
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


def test_run_on_the_datas_own_clients(capsys: Capture, tmp_path: Path) -> None:
    argv = [a for a in RUN if a not in ("--clients", "6")]
    printed(capsys, *argv, "--data", "owned.npz", "--method", "local-only", "--out", str(tmp_path / "run"))
    rows = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert [row.split(",")[3:6] for row in rows[1:]] == [["16", "1", "1"]] * 5


def test_run_into_an_empty_folder(capsys: Capture, tmp_path: Path) -> None:
    assert printed(capsys, *RUN, "--method", "fedavg", "--out", str(tmp_path))["path"] == str(tmp_path)


def test_resume_of_a_finished_run_says_the_same(capsys: Capture, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree("done", run)
    before = json.loads((run / "summary.json").read_text())
    after = printed(capsys, "resume", str(run))
    assert after["path"] == str(run)
    assert {k: v for k, v in after.items() if k != "path"} == {k: v for k, v in before.items() if k != "path"}


def test_report(capsys: Capture, tmp_path: Path) -> None:
    shutil.copytree("done", tmp_path / "done")
    records = printed(capsys, "report", str(tmp_path), "--out", str(tmp_path))
    summary = json.loads(Path("done/summary.json").read_text())
    assert len(records) == 1
    assert records[0]["method"] == "pa3dfl"
    assert summary["test_accuracy"] in records[0].values()
    assert cli.main(["report", str(tmp_path / "done")]) == 0
    out = capsys.readouterr().out
    for name in ("learning_curve.png", "table.json"):
        assert str(tmp_path / "done" / name) in out
        assert (tmp_path / "done" / name).stat().st_size > 0


# --- cost: the paper's efficiency table, CIFAR100, batch 128 ---

TABLE = [
    ("fedavg", "1/16", "1/16", "3.56", ".0131"), ("fedavg", "1/16", "1/8", "8.21", ".0497"),
    ("fedavg", "1/16", "1/2", "59.05", ".764"), ("fedavg", "1/16", "1", "188.05", "3.037"),
    ("pa3dfl", "1/16", "1/16", "3.63", ".081"), ("pa3dfl", "1/16", "1/8", "8.36", ".130"),
    ("pa3dfl", "1/16", "1/2", "59.88", ".848"), ("pa3dfl", "1/8", "1", "191.86", "2.867"),
]  # fmt: skip


def rounded(x: float, like: str) -> str:
    """With as many digits after the point as the paper prints."""
    return f"{x:.{len(like.partition('.')[2])}f}".removeprefix("0")


@pytest.mark.parametrize("p_min", ["1/16", "1/8"])
def test_cost_is_that_of_the_paper(p_min: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [row for row in TABLE if row[1] == p_min]
    monkeypatch.setattr(cli, "widths", lambda p: sorted({Fraction(row[2]) for row in expected}))
    flags = [f for name in dict.fromkeys(row[0] for row in expected) for f in ("--method", name)]
    records = printed(capsys, "cost", "--model", "cnn-cifar100", "--batch", "128", "--p-min", p_min, *flags)
    found = {(r["method"], r["p_min"], r["width"]): r for r in records}
    for method, p, width, multiply_adds, mebibytes in expected:
        r = found[method, p, width]
        assert rounded(r["encoder_multiply_adds"] / 1e7, multiply_adds) == multiply_adds
        assert rounded(r["encoder_bytes"] / 2**20, mebibytes) == mebibytes
        assert r["batch"] == 128


def test_cost_of_every_method_at_every_width(capsys: Capture) -> None:
    records = printed(capsys, "cost", "--p-min", "1/2", "--input-shape", "2,12,12", "--classes", "3")
    assert [(r["method"], r["width"]) for r in records] == [(m, w) for m in methods.registry() for w in ("1/2", "1")]
    [full] = [r for r in records if (r["method"], r["width"]) == ("fedavg", "1")]
    # conv1 32·2·25 + 32, conv2 64·32·25 + 64, fc1 576·512 + 512, fc2 512·128 + 128; the head 128·3 + 3
    assert full["encoder_parameters"] == 413_984
    assert full["parameters"] == 414_371
    assert full["bytes_down"] == full["bytes_up"] == 4 * 414_371
    # a batch of 50 through 12×12, 6×6 and two matrices
    assert full["encoder_multiply_adds"] == 50 * (144 * 1600 + 36 * 51_200 + 294_912 + 65_536)
    assert cli.main(["cost", "--p-min", "1/2", "--method", "fedavg"]) == 0
    assert "encoder multiply adds" in capsys.readouterr().out
