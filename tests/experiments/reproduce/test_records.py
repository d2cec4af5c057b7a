"""What a record of a run holds: multiply-adds, the curve, accuracy by capacity."""

from pathlib import Path

import pytest

from conftest import write_data
from pa3dfl.engines import cost
from pa3dfl.experiments.reproduce import cells, records
from pa3dfl.methods import assembly


def test_multiply_adds_are_those_of_the_rounds_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = cells.config_of(cells.Cell("tiny.npz", "list:1,1/4", "fedavg", 0), {
        "model": "cnn-fashion", "clients": 2, "per_round": 2, "epochs": 3, "batch": 10, "device": "cpu", "threads": 1,
        "p_min": "1/4",
    }, 1)  # fmt: skip
    clients = [{"client": "0", "width": "1", "n_train": "20"}, {"client": "1", "width": "1/2", "n_train": "40"}]
    found = records.multiply_adds(config, clients)
    model = assembly.make_model("cnn-fashion", assembly.make_method(config), (1, 8, 8), 4, config.narrowest())
    at = [assembly.configure({"p_min": "1"}).narrowest(), assembly.configure({"p_min": "1/2"}).narrowest()]
    full, half = (
        r["step_multiply_adds"] for r in cost.cost(assembly.make_method(config), model, config.narrowest(), 10, at)
    )
    assert found == {0: 3 * 2 * full, 1: 3 * 4 * half}


def test_a_curve_adds_up() -> None:
    rounds = [
        {"bytes_down": 3, "bytes_up": 2, "participants": [0, 1], "seconds": 1.0, "round": 1},
        {"bytes_down": 4, "bytes_up": 1, "participants": [1], "seconds": 2.0, "round": 2, "test_accuracy": 0.5,
         "rules": {"kept": {"test_accuracy": 0.25, "val_accuracy": 0.75}}},
    ]  # fmt: skip
    [point] = records.curve(rounds, {0: 100.0, 1: 10.0}, "kept")
    assert point == {"round": 2, "bytes": 10, "multiply_adds": 120, "seconds": 3.0, "test": {"kept": 0.25},
                     "val": {"kept": 0.75}}  # fmt: skip
    many = [{"round": i} for i in range(1000)]
    thin = records.thinned(many)
    assert (len(thin), thin[0], thin[-1]) == (records.POINTS, many[0], many[-1])


def test_capacities_by_level_and_by_fifth() -> None:
    levels = records.by_capacity([0.25, 1, 0.25, 1], [0.1, 0.5, 0.3, 0.7])
    assert [(g["low"], g["high"], g["accuracy"]) for g in levels] == [(0.25, 0.25, 0.2), (1, 1, 0.6)]
    fifths = records.by_capacity([i / 10 for i in range(10)], [i / 10 for i in range(10)])
    assert [g["accuracy"] for g in fifths] == pytest.approx([0.05, 0.25, 0.45, 0.65, 0.85])
    assert records.by_capacity([1, 1], [0, 1]) == []
