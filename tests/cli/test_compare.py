"""Methods and seeds side by side: equal terms, one table, nothing trained twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from pa3dfl.cli import main
from pa3dfl.experiments import api
from pa3dfl.runs import average, find_runs

TINY = [
    "--model", "cnn-fashion", "--clients", "6", "--per-round", "3", "--epochs", "1", "--batch", "10", "--rounds", "2",
    "--eval-every", "1", "--threads", "1", "--device", "cpu", "--methods", "fedavg,local-only", "--seeds", "0,1",
]  # fmt: skip


@pytest.fixture
def words(data: str, tmp_path: Path) -> list[str]:
    return ["compare", *TINY, "--data", data, "--out", str(tmp_path / "all")]


def test_one_record_per_method(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [r["method"] for r in records] == ["fedavg", "local-only"]
    for record in records:
        paths = [tmp_path / "all" / f"{record['method']}-{seed}" for seed in (0, 1)]
        each = [json.loads((p / "summary.json").read_text())["test_accuracy"] for p in paths]
        assert record["runs"] == 2
        assert record["test_accuracy"] == pytest.approx(sum(each) / 2)
        assert record["deviation"] == pytest.approx(abs(each[0] - each[1]) / 2**0.5)
    assert json.loads((tmp_path / "all" / "table.json").read_text()) == records
    assert (tmp_path / "all" / "learning_curve.png").exists()


def test_the_table_shows_which_options_were_equal_for_all(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text("clip_norm: 3\nmethods: {ditto: {lr: 0.2, mu: 0.5}, fedavg: {lr: 0.05}}\n")
    words = [*words, str(file), "--methods", "ditto,fedavg"]
    assert main(words) == 0
    out = capsys.readouterr().out
    [header] = [line.split(maxsplit=1)[1] for line in out.splitlines() if line.strip().startswith("method")]
    columns = "mean ± tenth ≤ 21% ≤ 41% ≤ 60% ≤ 80% ≤ 100% received kept a round down round time"
    assert " ".join(header.split()) == columns
    assert (
        "equal for all: preset tuned, rounds 2, per_round 3, epochs 1, batch 10, init he, lr_decay 0.998, "
        "clip_norm 3.0, weight_decay 0.0005, augment False, capacity_rule width, tested adapted\n"
        "lr: ditto 0.2, fedavg 0.05\n"
    ) in out
    ditto, fedavg = json.loads((tmp_path / "all" / "table.json").read_text())
    assert (ditto["options"], fedavg["options"]) == ({"mu": 0.5}, {})
    assert (ditto["training"]["lr"], ditto["training"]["clip_norm"]) == (0.2, 3.0)
    lines = (tmp_path / "all" / "ditto-0" / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    # three clients of one width in each round, of either seed
    assert ditto["bytes_up"] == rounds[0]["bytes_up"] == fedavg["bytes_up"] == ditto["bytes_down"]


def test_finished_runs_are_not_trained_again(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(words) == 0
    trained: list[Any] = []
    monkeypatch.setattr(api, "run", lambda config, **_: trained.append(config))
    monkeypatch.setattr(api, "resume", lambda path, **_: trained.append(path))
    assert main(words) == 0
    assert trained == []
    (tmp_path / "all" / "fedavg-1" / "summary.json").unlink()
    main(words)
    assert trained == [tmp_path / "all" / "fedavg-1"]


def test_runs_with_other_options_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--lr", "0.3"]) == 2
    assert "holds a run with other options" in capsys.readouterr().err


def test_an_unknown_method_is_refused_before_anything_is_trained(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--methods", "fedavg,fedavgg"]) == 2
    assert "did you mean fedavg?" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


def test_curves_are_means_over_seeds(words: list[str], tmp_path: Path) -> None:
    assert main(words) == 0
    runs = find_runs([tmp_path / "all" / "fedavg-0", tmp_path / "all" / "fedavg-1"])
    averaged = average(runs)
    expected = [(a["test_accuracy"] + b["test_accuracy"]) / 2 for a, b in zip(*(r.rounds for r in runs), strict=True)]
    assert [r["test_accuracy"] for r in averaged.rounds] == pytest.approx(expected)
    assert len(averaged.clients) == 12
