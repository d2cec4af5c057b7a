"""`pa3dfl reproduce` on small data: what is run, recorded, skipped, stopped and refused."""

import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import write_data
from pa3dfl import cli, methods
from pa3dfl.experiments import api
from pa3dfl.experiments.reproduce import cells, convergence, efficiency, hn_cost, records, timing, work
from pa3dfl.federation.federation import Federation
from pa3dfl.methods import assembly
from workspace import Capture, printed, refused

TINY = [
    "--data", "tiny.npz", "--model", "cnn-fashion", "--clients", "6", "--per-round", "3", "--epochs", "1",
    "--batch", "10", "--threads", "1", "--device", "cpu", "--setting", "hetero",
]  # fmt: skip
OVERALL = ["reproduce", "overall", *TINY, "--rounds", "2"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with small data in it."""
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def results() -> list[dict[str, Any]]:
    return records.read_all(Path("results"))


def states(capsys: Capture, *words: str) -> dict[str, str]:
    return {r["method"]: r["state"] for r in printed(capsys, *OVERALL, *words, "--dry-run")}


def test_a_record_agrees_with_its_run_directory(capsys: Capture) -> None:
    assert cli.main([*OVERALL, "--methods", "pa3dfl"]) == 0
    [record] = results()
    [run] = [p for p in Path("runs/reproduce").iterdir() if (p / "config.yaml").is_file()]
    summary = json.loads((run / "summary.json").read_text())
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    told = record["rules"][record["tested"]]
    assert told["test_accuracy"] == summary["test_accuracy"]
    assert np.mean(record["clients"][record["tested"]]) == pytest.approx(summary["test_accuracy"], abs=1e-4)
    assert record["config_hash"] == summary["config_hash"]
    last = record["curve"][-1]
    assert last["round"] == 2
    assert last["bytes"] == sum(r["bytes_up"] + r["bytes_down"] for r in rounds)
    assert last["test"][record["tested"]] == pytest.approx(rounds[-1]["test_accuracy"], abs=1e-4)
    assert not (run / "checkpoints").exists()
    assert "<title>Pa3dFL on " in Path("runs/reproduce/tiny-hetero.html").read_text()
    page = Path("docs/reproduction.md").read_text()
    assert f"| Pa3dFL | – | {100 * summary['test_accuracy']:.1f} |" in page


# --- finished runs are skipped ---


def test_finished_runs_are_skipped_or_recorded_again(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--methods", "fedavg,local-only"]
    assert states(capsys, *words) == {"fedavg": "missing", "local-only": "missing"}
    assert cli.main([*OVERALL, "--methods", "fedavg"]) == 0
    [whole] = results()
    whole.pop("date"), whole.pop("seconds")
    assert states(capsys, *words) == {"fedavg": "done", "local-only": "missing"}

    for file in Path("results/runs").iterdir():
        file.unlink()
    trained: list[Any] = []
    monkeypatch.setattr(api, "run", trained.append)
    assert cli.main([*OVERALL, "--methods", "fedavg"]) == 0  # recorded again from its run directory
    [again] = results()
    again.pop("date"), again.pop("seconds")
    for point in (*whole["curve"], *again["curve"]):
        point.pop("seconds")
    assert (trained, again) == ([], whole)


def test_a_run_that_was_stopped_goes_on(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Federation.round

    def one_round_only(self: Federation, state: Any, meter: Any) -> None:
        if state.round == 1:
            raise KeyboardInterrupt
        real(self, state, meter)

    assert cli.main([*OVERALL, "--methods", "fedavg", "--out", "undisturbed", "--runs", "elsewhere"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Federation, "round", one_round_only)
        assert cli.main([*OVERALL, "--methods", "fedavg"]) == 130
    assert results() == []
    assert states(capsys, "--methods", "fedavg") == {"fedavg": "begun"}
    assert cli.main([*OVERALL, "--methods", "fedavg"]) == 0
    [resumed], [whole] = results(), records.read_all(Path("undisturbed"))
    assert resumed["clients"] == whole["clients"]
    assert resumed["curve"][-1]["test"] == whole["curve"][-1]["test"]


def hold(path: str, ready: Any, over: Any) -> None:
    job = work.Job(cells.Cell("tiny.npz", "hetero", "fedavg", 0), assembly.configure({}), Path(path), Path("none"))
    with work.claimed(job) as mine:
        assert mine
        ready.set()
        over.wait(60)


def test_a_run_of_another_process_is_left_alone(capsys: Capture) -> None:
    cell = cells.Cell("tiny.npz", "hetero", "fedavg", 0)
    given = dict(zip([w.removeprefix("--").replace("-", "_") for w in TINY[::2]], TINY[1::2], strict=True))
    name = cells.slug(cells.config_of(cell, given, 2))
    spawned = multiprocessing.get_context("spawn")
    ready, over = spawned.Event(), spawned.Event()
    other = spawned.Process(target=hold, args=(f"runs/reproduce/{name}", ready, over))
    other.start()
    assert ready.wait(60)
    assert cli.main([*OVERALL, "--methods", "fedavg,local-only"]) == 0
    assert [r["method"] for r in results()] == ["local-only"]
    assert "1 run is being trained by other processes" in capsys.readouterr().err
    other.kill()  # a dead process holds nothing
    other.join()
    assert cli.main([*OVERALL, "--methods", "fedavg"]) == 0
    assert {r["method"] for r in results()} == {"local-only", "fedavg"}


def test_the_plan_as_json_after_its_runs(capsys: Capture) -> None:
    [record] = printed(capsys, *OVERALL, "--methods", "local-only")
    assert (record["method"], record["state"], record["rounds"]) == ("local-only", "done", 2)


# --- budget and estimates ---


def test_a_budget_stops_in_the_middle_of_a_run_and_the_next_call_goes_on(capsys: Capture) -> None:
    words = ["--methods", "fedavg", "--rounds", "300", "--eval-every", "300"]
    assert cli.main([*OVERALL, *words, "--budget", "0.01"]) == 0
    assert "the budget is spent" in capsys.readouterr().err
    assert states(capsys, *words) == {"fedavg": "begun"}
    assert cli.main([*OVERALL, *words]) == 0
    [record] = results()
    assert (record["rounds"], record["curve"][-1]["round"]) == (300, 300)


def test_a_pace_is_measured_once(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    [first] = printed(capsys, *OVERALL, "--methods", "fedavg", "--dry-run")
    assert first["seconds"] > 0
    monkeypatch.setattr(timing, "measure", None)
    [second] = printed(capsys, *OVERALL, "--methods", "fedavg", "--dry-run")
    assert second == first
    assert not Path("docs").exists()


# --- all parts ---


def test_all_parts_at_a_small_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficiency, "BATCHES", (2,))
    monkeypatch.setattr(efficiency, "ROWS", {"p-width": "fedavg"})
    monkeypatch.setattr(hn_cost, "MODELS", {})
    monkeypatch.setattr(convergence, "ROUNDS", 2)
    monkeypatch.setattr(convergence, "ROWS", 5)
    assert cli.main(["reproduce", "all", *TINY, "--fraction", "1/500"]) == 0
    rows = {r["row"] for r in results()}
    assert rows >= {*methods.registry(), *methods.registry(methods.ABLATIONS)}
    # λ and depth that are the defaults are Pa3dFL's own run again.
    swept = {f"pa3dfl@{k}={v}" for k, values in cells.SWEEPS.items() for v in values}
    assert {r for r in rows if "@" in r} == swept - {"pa3dfl@lam=0.001", "pa3dfl@depth=3"}
    page = Path("docs/reproduction.md").read_text()
    for title in ("Overall accuracy", "Efficiency", "Cost of the hyper-network", "Ablation", "Figures", "Runs"):
        assert f"## {title}" in page
    for picture in re.findall(r"\]\((images/.*?)\)", page):
        assert (Path("docs") / picture).is_file()
    assert {"lam.png", "depth.png", "convergence.png"} <= {p.name for p in Path("docs/images/reproduction").iterdir()}
    assert cli.main(["reproduce", "--render-only"]) == 0
    assert Path("docs/reproduction.md").read_text() == page


# --- failures ---


def test_missing_data_is_left_out_with_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "available", lambda folder: [])
    assert cli.main([*OVERALL, "--data", "cifar10,tiny.npz", "--methods", "local-only"]) == 0
    assert [r["data"] for r in results()] == ["tiny.npz"]
    [line] = [line for line in capsys.readouterr().err.splitlines() if "cifar10" in line]
    assert line == "pa3dfl: cifar10 was not found and is left out: see `pa3dfl data`, or pass --data-dir"


def test_no_data_at_all_is_an_error(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "available", lambda folder: [])
    assert cli.main(["reproduce", "overall", "--data", "cifar10", "--methods", "local-only"]) == 2
    assert "nothing was run: none of the data was found" in capsys.readouterr().err


def test_a_run_that_fails_does_not_stop_the_others(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    run = api.run

    def fails(config: Any, **given: Any) -> Any:
        if config.method == "fedavg":
            raise RuntimeError("no luck")
        return run(config, **given)

    monkeypatch.setattr(api, "run", fails)
    assert cli.main([*OVERALL, "--methods", "fedavg,local-only"]) == 2
    err = capsys.readouterr().err
    assert "tiny hetero fedavg seed 0 failed: RuntimeError: no luck" in err
    assert "1 of 2 runs failed" in err
    assert [r["method"] for r in results()] == ["local-only"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tables"], "unknown part 'tables': expected one of overall, efficiency"),
        (["overall", "--rounds", "0"], "rounds is 0: expected at least 1"),
        (["overall", "--rounds", "3", "--fraction", "1/2"], "give one of them"),
        (["overall", "--fraction", "2"], "fraction 2 is outside (0, 1]"),
        (["overall", "--budget", "0"], "budget is 0.0: expected a number above 0"),
        (["overall", "--budget", "soon"], "budget is 'soon': expected a number"),
        (["overall", "--data", "cifar10,,x"], "'cifar10,,x' has an empty name"),
        (["overall", "--data", "cifar11"], "unknown data 'cifar11', did you mean cifar10?"),
        (["overall", "--setting", "rich"], "unknown setting 'rich'"),
        (["overall", "--methods", "fedavgg"], "did you mean fedavg?"),
        (["overall", "--seeds", "one"], "seeds is 'one': expected a whole number"),
        (["overall", "--data", "none.npz"], "there is no file none.npz"),
        (["overall", "--clients", "0"], "clients is 0: expected at least 1"),
        (["overall", "--budged", "1"], "did you mean --budget?"),
    ],
)
def test_wrong_calls_are_refused(capsys: Capture, words: list[str], message: str) -> None:
    assert message in refused(capsys, "reproduce", *words)
    assert not Path("results").exists()


def test_a_broken_record_is_named(capsys: Capture) -> None:
    Path("results/runs").mkdir(parents=True)
    Path("results/runs/a.json").write_text("{")
    assert "results/runs/a.json is not valid JSON" in refused(capsys, "reproduce", "--render-only")
