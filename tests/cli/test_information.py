"""Commands that show information: runs, methods, data and costs."""

import json
import shutil
from fractions import Fraction
from pathlib import Path

import pytest

from pa3dfl import cli, methods
from pa3dfl.data import NAMES
from pa3dfl.engines.cost import cost
from pa3dfl.methods import assembly
from workspace import Capture, printed

pytestmark = pytest.mark.usefixtures("workspace")


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
    assert "searched: " in capsys.readouterr().out


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
    """Rounded to as many digits as the paper prints."""
    return f"{x:.{len(like.partition('.')[2])}f}".removeprefix("0")


@pytest.mark.parametrize("p_min", ["1/16", "1/8"])
def test_cost_equals_the_papers_table(p_min: str, capsys: Capture) -> None:
    expected = [row for row in TABLE if row[1] == p_min]
    flags = [f for name in dict.fromkeys(row[0] for row in expected) for f in ("--method", name)]
    flags += [f for width in dict.fromkeys(row[2] for row in expected) for f in ("--width", width)]
    records = printed(capsys, "cost", "--model", "cnn-cifar100", "--batch", "128", "--p-min", p_min, *flags)
    found = {(r["method"], r["p_min"], r["width"]): r for r in records}
    for method, p, width, multiply_adds, mebibytes in expected:
        r = found[method, p, width]
        assert rounded(r["encoder_multiply_adds"] / 1e7, multiply_adds) == multiply_adds
        assert rounded(r["encoder_bytes"] / 2**20, mebibytes) == mebibytes
        assert r["batch"] == 128
        if (method, width) == ("pa3dfl", "1/16"):  # one block a layer: nothing to gain
            assert r["chosen_multiply_adds"] == r["encoder_multiply_adds"]
        elif method == "pa3dfl":  # between the table's own number and that of a plain network of the width
            model = assembly.make_model("cnn-cifar100", methods.find("fedavg"), (3, 32, 32), 100, Fraction(p))
            [plain] = cost(methods.find("fedavg")(), model, Fraction(p), 128, [Fraction(width)])
            assert plain["encoder_multiply_adds"] < r["chosen_multiply_adds"] < r["encoder_multiply_adds"]


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
    assert full["share"] == 1
    assert full["peak_training_bytes"] is None
    [both] = [r for r in records if (r["method"], r["width"]) == ("ditto", "1")]
    assert both["step_multiply_adds"] == 2 * full["step_multiply_adds"]
    assert full["step_multiply_adds"] == full["encoder_multiply_adds"] + 50 * 128 * 3
    assert cli.main(["cost", "--p-min", "1/2", "--method", "fedavg"]) == 0
    assert "encoder multiply adds" in capsys.readouterr().out


def test_cost_measures_memory_with_the_flag(capsys: Capture) -> None:
    flags = ("--p-min", "1/2", "--input-shape", "1,8,8", "--batch", "10", "--memory", "--device", "cpu")
    records = printed(capsys, "cost", "--width", "1", *flags)
    assert [r["method"] for r in records] == list(methods.registry())
    peaks = {r["method"]: r["peak_training_bytes"] for r in records}
    [size] = [4 * r["parameters"] for r in records if r["method"] == "fedavg"]
    # Parameters and their gradients at least; Ditto has two models and what it received.
    assert 2 * size < peaks["fedavg"] < 3 * size < 5 * size < peaks["ditto"] < 7 * size
    assert peaks == {r["method"]: r["peak_training_bytes"] for r in printed(capsys, "cost", "--width", "1", *flags)}
    assert cli.main(["cost", "--method", "fedavg", "--width", "1", *flags]) == 0
    assert f"peak training bytes    {peaks['fedavg']:,}" in capsys.readouterr().out
