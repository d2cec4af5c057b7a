"""Tuning: every trial is kept, validation accuracy alone chooses, a failure stops nobody else."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import write_data
from pa3dfl.cli import main
from pa3dfl.experiments import api

Capture = pytest.CaptureFixture[str]
TINY = [
    "--model", "cnn-fashion", "--clients", "6", "--per-round", "3", "--epochs", "1", "--batch", "10", "--rounds", "2",
    "--eval-every", "1", "--threads", "1", "--device", "cpu", "--data", "tiny.npz", "--out", "tried",
]  # fmt: skip
FAILING = """
from dataclasses import dataclass
from pa3dfl.methods import option
from pa3dfl.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Failing(FedAvg):
    name = "failing"
    limit: float = option(1.0, "fails above")

    def aggregate(self, task, server, updates, rnd):
        if self.limit > 1:
            raise ValueError("too much\\nof it")
        return super().aggregate(task, server, updates, rnd)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def tune(capsys: Capture, *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["tune", *words, *TINY, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("tried/trials.jsonl").read_text().splitlines()]


def test_every_trial_is_kept_and_the_best_can_be_run(capsys: Capture) -> None:
    rows = tune(capsys, "ditto", "--grid", "lr=0.01,0.2", "--grid", "mu=0.1,1", "--seeds", "1000,1001")
    assert len(rows) == 4
    assert [r["val_accuracy"] for r in rows] == sorted((r["val_accuracy"] for r in rows), reverse=True)
    trials = lines()
    assert [(t["options"]["lr"], t["options"]["mu"], t["seed"]) for t in trials] == [
        (lr, mu, seed) for lr in (0.01, 0.2) for mu in (0.1, 1.0) for seed in (1000, 1001)
    ]
    for trial in trials:
        summary = json.loads((Path(trial["path"]) / "summary.json").read_text())
        assert {k: trial[k] for k in ("val_accuracy", "best_round", "seconds", "seed")} == {
            k: summary[k] for k in ("val_accuracy", "best_round", "seconds", "seed")
        }
        assert "test_accuracy" not in trial
    with Path("tried/trials.csv").open() as f:
        kept = list(csv.DictReader(f))
    assert [float(r["val_accuracy"]) for r in kept] == [t["val_accuracy"] for t in trials]
    assert kept[0]["options"] == "lr 0.01, mu 0.1"
    for row in rows:
        both = [t["val_accuracy"] for t in trials if t["options"] == row["options"]]
        assert row["val_accuracy"] == pytest.approx(sum(both) / 2)
        assert row["deviation"] == pytest.approx(abs(both[0] - both[1]) / 2**0.5)
    best = yaml.safe_load(Path("tried/best.yaml").read_text())
    assert (best["method"], best["rounds"], best["methods"]) == ("ditto", 2, {"ditto": rows[0]["options"]})
    assert main(["run", "tried/best.yaml", "--seed", "1001", "--out", "again", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    [same] = [t for t in trials if t["options"] == rows[0]["options"] and t["seed"] == 1001]
    assert again["val_accuracy"] == same["val_accuracy"]


def test_validation_chooses_and_ties_go_to_the_first(capsys: Capture) -> None:
    words = ("fedavg", "--grid", "lr=0.3,0.1,0.2,0.4")
    tune(capsys, *words)
    for lr, val, test in (("0.3", 0.5, 0.9), ("0.1", 0.7, 0.1), ("0.2", 0.7, 0.8), ("0.4", 0.6, 1.0)):
        file = Path(f"tried/fedavg-lr={lr}-1000/summary.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"val_accuracy": val, "test_accuracy": test}))
    assert [r["options"]["lr"] for r in tune(capsys, *words)] == [0.1, 0.2, 0.4, 0.3]
    assert yaml.safe_load(Path("tried/best.yaml").read_text())["methods"] == {"fedavg": {"lr": 0.1}}


def test_finished_trials_are_not_trained_again(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tune(capsys, "fedavg", "--grid", "lr=0.1,0.2")
    trained: list[Any] = []
    run = api.run
    monkeypatch.setattr(api, "run", lambda config, **_: (trained.append(config.lr), run(config)))
    assert tune(capsys, "fedavg", "--grid", "lr=0.1,0.2") == before
    assert trained == []
    assert len(tune(capsys, "fedavg", "--grid", "lr=0.1,0.2,0.3")) == 3
    assert trained == [0.3]
    assert len(tune(capsys, "fedavg", "--grid", "lr=0.2")) == 1
    assert [t["options"]["lr"] for t in lines()] == [0.1, 0.2, 0.3]
    assert main(["tune", "fedavg", "--grid", "lr=0.1,0.5", *TINY, "--epochs", "2"]) == 2
    assert "fedavg-lr=0.1-1000 holds a run with other options" in capsys.readouterr().err
    assert trained == [0.3]


def test_a_trial_that_diverges_or_fails_is_kept_with_its_reason(capsys: Capture, folder: Path) -> None:
    (folder / "failing.py").write_text(FAILING)
    rows = tune(capsys, "failing:Failing", "--grid", "limit=2,1", "--grid", "lr=1e9,0.1", "--clip-norm", "0")
    reasons = {(r["options"]["limit"], r["options"]["lr"]): r["reason"] for r in rows}
    assert reasons[2.0, 0.1] == "ValueError: too much of it"
    assert reasons[1.0, 1e9] == "diverged: the training loss of round 2 is nan"
    assert reasons[1.0, 0.1] is None
    assert rows[0]["options"] == {"limit": 1.0, "lr": 0.1}
    assert [t["reason"] is None for t in lines()] == [False, False, False, True]
    assert main(["tune", "failing:Failing", "--grid", "limit=2,3", *TINY]) == 2
    assert "no trial succeeded, see trials.csv; the first of them: ValueError: too much" in capsys.readouterr().err


def test_several_methods_give_one_file_for_compare(capsys: Capture) -> None:
    rows = tune(capsys, "ditto,fedavg", "--grid", "mu=0.1,1", "--grid", "lr=0.1,0.2", "--trials", "1")
    assert [(r["method"], sorted(r["options"])) for r in rows] == [("ditto", ["lr", "mu"]), ("fedavg", ["lr"])]
    best = yaml.safe_load(Path("tried/best.yaml").read_text())
    assert best["methods"] == {r["method"]: r["options"] for r in rows}
    assert "method" not in best
    words = ["compare", "tried/best.yaml", "--methods", "ditto,fedavg", "--out", "all", "--json"]
    assert main(words) == 0
    for row in rows:
        config = yaml.safe_load(Path(f"all/{row['method']}-0/config.yaml").read_text())
        assert {k: config[k] for k in row["options"]} == row["options"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["ditto", "--grid", "mu=0.1,-1"], "mu is -1.0: expected at least 0"),
        (["ditto", "--grid", "lr=0.1,0"], "lr is 0.0: expected a number above 0"),
        (["ditto", "--grid", "muu=1"], "grid option 'muu' cannot be tuned: did you mean mu?"),
        (["ditto", "--grid", "mu="], "grid 'mu=' has no values"),
        (["ditto", "--mu", "1", "--grid", "mu=1"], "mu is given and in the grid"),
        (["fedavg", "--lr", "1"], "nothing is left to tune of fedavg: name its options with --grid"),
        (["fedavg,ditto", "--grid", "mu=1"], "nothing is left to tune of fedavg"),
        (["dito", "--grid", "mu=1"], "did you mean ditto?"),
        (["ditto", "--trials", "0"], "trials is 0: expected at least 1"),
        (["ditto", "--seeds", "10,x"], "seeds is 'x': expected a whole number"),
        (["ditto", "--seeds", "1000,9"], "seed 9 is for published results: tune on seeds from 10, such as 1000"),
        (
            ["fedavg,ditto", "--grid", "lr=0.1", "--grid", "mu=1,2", "--trials", "2"],
            "the grid of fedavg has 1 setting",
        ),
        ([], "the following arguments are required: METHOD"),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_trained(words: list[str], complaint: str, capsys: Capture) -> None:
    assert main(["tune", *words, *TINY]) == 2
    assert complaint in capsys.readouterr().err
    assert not Path("tried").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ditto"], "4 trials: 4 settings × 1 seed, in tried\n"),
        (["fedavg,ditto"], "6 trials: 2 + 4 settings × 1 seed, in tried\npa3dfl: methods have different numbers"),
        (["fedavg,ditto", "--trials", "3"], "6 trials: 3 settings of each method × 1 seed, in tried\n"),
    ],
)
def test_the_number_of_trials_is_printed_first(words: list[str], said: str, capsys: Capture) -> None:
    assert main(["tune", *words, "--grid", "lr=0.1,0.2", "--grid", "mu=0.1,1", *TINY]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("pa3dfl: " + said)
    assert out.splitlines()[-2:] == ["tried/best.yaml", "tried/trials.csv"]
    assert len(lines()) == int(said.split()[0])
