"""What a page says in words: its headline, and the terms of its runs at the foot."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic import data_of, write_run

from pa3dfl.core.options.config import Config
from pa3dfl.runs import page
from pa3dfl.runs.page.content import content, find
from pa3dfl.runs.page.headline import headline
from pa3dfl.runs.page.html import foot
from pa3dfl.runs.page.terms import names, terms
from pa3dfl.runs.rundata import load

pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")


def said(*paths: Path) -> str:
    runs = find(paths)
    return " ".join(headline(runs, content(runs)["runs"]))


def lower(run: Path, by: Sequence[float]) -> None:
    """Lower the test accuracy of each client."""
    file = run / "clients.csv"
    head, *lines = file.read_text().splitlines()
    rows = [line.split(",") for line in lines]
    for row, less in zip(rows, by, strict=True):
        row[8] = str(round(float(row[8]) - less, 6))
    file.write_text("\n".join([head, *map(",".join, rows)]) + "\n")


def test_the_headline_by_hand(tmp_path: Path) -> None:
    a, b = (write_run(tmp_path / m, m, clients=10, network=False) for m in ("good", "weak"))
    lower(b, [0.04, 0.02] * 5)  # 3 ± 1.96·1.054/√10
    told = said(a, b)
    assert "good has a mean test accuracy of" in told
    assert "3.0 points ahead of weak (95% interval 2.3 to 3.7 points) over 10 clients." in told
    assert "12.0 MB sent both ways" in told or "24 MB sent both ways" in told or "12 MB sent both ways" in told
    assert "chance" not in told
    same = write_run(tmp_path / "same", "same", clients=10, network=False)
    assert "the best of 2 methods, level with same over 10 clients." in said(a, same)
    lower(same, [0.1, -0.08] * 5)
    assert "1.0 points ahead of same" in said(a, same)
    assert "chance" in said(a, same)


def test_methods_are_compared_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    """Seed 1 of both is equal; seed 0, which one of them lacks, is easier."""
    zero, one, weak = (
        write_run(tmp_path / f"{m}{s}", m, clients=10, network=False, seed=s)
        for m, s in (("good", 0), ("good", 1), ("weak", 1))
    )
    lower(zero, [-0.1] * 10)
    assert "of 2 methods, level with weak over 10 clients of the one seed that both have." in said(zero, one, weak)
    lower(weak, [-0.01] * 10)
    told = said(zero, one, weak)
    assert told.startswith("good has a mean")
    assert "; weak is 1.0 points ahead (95% interval 1.0 to 1.0 points) over 10 clients of the one seed" in told
    lower(weak, [0.03] * 10)
    other = write_run(tmp_path / "weak0", "weak", clients=10, network=False, seed=0)
    lower(other, [-0.05] * 10)
    assert "3.5 points ahead of weak" in (told := said(zero, one, weak, other))
    assert "over 10 clients and 2 seeds." in told
    third = write_run(tmp_path / "weak2", "weak", clients=10, network=False, seed=2)
    assert said(zero, third).count("follows with") == 1


def test_unfinished_not_yet_tested_and_without_capacities(tmp_path: Path) -> None:
    begun = write_run(tmp_path / "begun", finished=False, history=False)
    (begun / "clients.csv").unlink()
    (begun / "rounds.jsonl").write_text("")
    assert said(begun).startswith("No client has been tested yet")
    page.write([begun], tmp_path / "a.html", running=True)
    assert data_of(tmp_path / "a.html")["running"] is True
    assert "Not finished: Pa3dFL (round 6 of 6)." in said(write_run(tmp_path / "stopped", finished=False))


def with_options(path: Path, **given: Any) -> Path:
    config = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump(config | given))
    return path


def test_runs_with_other_options_are_rows_of_their_own(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / k, "fedavg", network=False) for k in "abcde"]
    given: list[dict[str, Any]] = [{}, {"seed": 1}, {"mu": 0.5}, {"rounds": 9}, {"out": "elsewhere", "threads": 2}]
    for path, options in zip(runs, given, strict=True):
        with_options(path, **{"mu": 1.0} | options)
    shown = content(find(runs))["runs"]
    assert [(r["method"], r["seed"]) for r in shown] == [
        ("FedAvg, rounds 6, mu 1.0", 0), ("FedAvg, rounds 6, mu 1.0", 1), ("FedAvg, rounds 6, mu 0.5", 0),
        ("FedAvg, rounds 9, mu 1.0", 0), ("FedAvg, rounds 6, mu 1.0, repetition 2", 0),
    ]  # fmt: skip
    assert names(find(runs[:2])) == ["FedAvg"] * 2
    ideal = with_options(write_run(tmp_path / "ideal", ideal=True, network=False), lr=0.1, mu=7)
    assert names(find([runs[0], ideal])) == ["FedAvg, hetero", "Pa3dFL, ideal"]


def test_the_foot_says_what_is_equal_and_what_differs(tmp_path: Path) -> None:
    a, b, c = (write_run(tmp_path / m, m, network=False) for m in ("a", "b", "c"))
    with_options(a, mu=1, data_fingerprint="x")
    runs = find([with_options(b, lr=0.1), with_options(c, lr=0.1, rounds=9, data_fingerprint="y"), a])
    equal, *different = terms(runs, names(runs))
    assert equal.startswith("Equal for all: data synthetic, init he, setting hetero,")
    assert "epochs 1, batch 10" in equal
    assert different == [
        "Different rounds: 6 for b and a; 9 for c.",
        "Different lr: 0.1 for b and c; none for a.",
        "Different data fingerprint: none for b; y for c; x for a.",
    ]
    assert "Not on equal terms: the runs differ in rounds, data fingerprint; see the foot" in said(a, b, c)
    assert "equal terms" not in said(b, with_options(a, data_fingerprint="y"))
    assert terms(runs[:1], ["b"]) == []
    text = page.write([a, b, c], tmp_path / "a.html").read_text()
    assert "Different rounds: 6 for a and b; 9 for c." in text
    assert "<title>a, b, c on synthetic</title>" in text


def test_the_foot_of_an_unfinished_run_says_what_made_it(tmp_path: Path) -> None:
    config = Config(method="pa3dfl", rounds=6, options={"hidden": 16})
    fields = dataclasses.asdict(config)
    options = fields.pop("options")
    given = {k: v for k, v in fields.items() if v is not None} | options | {"data_fingerprint": "x"}
    run = with_options(write_run(tmp_path / "a", finished=False), **given)
    file = run / "history" / "about.json"
    old = foot(find([run]), content(find([run]))["runs"])
    assert f"seed 0; hash of the configuration {config.hash()}<" in old  # an earlier version wrote no more
    made = {"version": "0.0.7", "commit": "abc+", "torch": "2.0", "device": "cpu"}
    file.write_text(json.dumps(json.loads(file.read_text()) | made))
    told = foot(find([run]), content(find([run]))["runs"])
    assert f"{config.hash()}; commit abc+; pa3dfl 0.0.7; PyTorch 2.0; device cpu<" in told
    with_options(run, lr=-1)
    assert "hash" not in foot(find([run]), content(find([run]))["runs"])


def test_whom_the_best_method_serves_worst(tmp_path: Path) -> None:
    """By fifths of capacity, by level where there are few, and at equal capacity by accuracy."""
    ten = [0, 0, 0.3, 0.3, 0, 0, 0, 0, 0, 0]
    run = write_run(tmp_path / "a", clients=10, network=False)
    lower(run, [float(row["test_accuracy"]) - 0.9 + low for row, low in zip(load(run).client_rows, ten, strict=True)])
    assert "Of its clients it serves the fifth with capacity 23% to 34% worst: 60.0%." in said(run)
    ideal = write_run(tmp_path / "ideal", clients=10, network=False, ideal=True)
    lower(ideal, [float(r["test_accuracy"]) - 0.9 + low for r, low in zip(load(ideal).client_rows, ten, strict=True)])
    assert "The fifth of its clients with the lowest accuracy has a mean of 60.0%." in said(ideal)
    file = ideal / "clients.csv"
    head, *rows = (line.split(",") for line in file.read_text().splitlines())
    for row, r in zip(rows, [1, 1, 0.0625, 0.0625, *[0.25] * 6], strict=True):
        row[1] = str(r)
    file.write_text("\n".join(map(",".join, [head, *rows])) + "\n")
    assert "Of its clients it serves those with capacity 6.25% worst: 60.0%." in said(ideal)


def test_clients_at_their_own_best_evaluations_are_explained(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", "local-only", clients=10, network=False)
    note = "LocalOnly: each client keeps the model of its own best evaluation"
    assert note not in page.write([path], tmp_path / "a.html").read_text()
    text = (path / "clients.csv").read_text().splitlines()
    rows = [line.split(",") for line in text[1:]]
    for row in rows:
        row[8] = row[10] = str(float(row[8]) + 0.01)
    (path / "clients.csv").write_text("\n".join([text[0], *map(",".join, rows)]) + "\n")
    assert note in page.write([path], tmp_path / "a.html").read_text()
