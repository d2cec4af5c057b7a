"""One small JSON file for each finished run: the only input of the page."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from pa3dfl.core import machine
from pa3dfl.core.errors import UserError
from pa3dfl.core.files import write_atomically
from pa3dfl.core.options.config import Config
from pa3dfl.engines import cost
from pa3dfl.experiments.reproduce import cells, paper
from pa3dfl.methods import assembly
from pa3dfl.runs.format import RunDirectory

RULES = ("adapted", "received", "kept")
POINTS = 60
"""How many evaluations a curve keeps at most."""

Record = dict[str, Any]


def of_run(cell: cells.Cell, config: Config, path: Path) -> Record:
    """The record of a finished run."""
    directory = RunDirectory(path)
    summary = json.loads(directory.summary.read_text())
    rounds = [json.loads(line) for line in directory.rounds.read_text().splitlines()]
    with (path / "clients.csv").open(newline="") as f:
        clients = list(csv.DictReader(f))
    by_rule = summary.get("rules") or {summary.get("tested", "adapted"): summary}
    work = multiply_adds(config, clients)
    values = assembly.flat(config)
    for name in ("out", "data_dir"):
        values.pop(name, None)
    return {
        "data": config.data,
        "setting": config.setting,
        "model": config.model,
        "method": config.method,
        "row": cell.row,
        "seed": config.seed,
        "rounds": summary["rounds"],
        "planned_rounds": config.rounds,
        "paper_rounds": paper.rounds(config.data),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "stopped_early": summary["stopped_early"],
        "tested": summary.get("tested", "adapted"),
        "key": cells.key(config),
        "config_hash": summary["config_hash"],
        "commit": machine.commit(),
        "version": summary["version"],
        "device": machine.processor(config.device),
        "threads": config.threads,
        "precision": config.precision,
        "seconds": round(summary["seconds"], 1),
        "rules": {rule: _rule(rule, known, summary, clients) for rule, known in by_rule.items()},
        "clients": {
            "r": [round(float(c["r"]), 4) for c in clients],
            "alpha": _column(clients, "alpha"),
            **{rule: column for rule in by_rule if (column := _accuracies(rule, summary, clients))},
        },
        "curve": thinned(curve(rounds, work, summary.get("tested", "adapted"))),
        "config": values,
    }


def _rule(rule: str, known: Mapping[str, Any], summary: Mapping[str, Any], clients: list[dict[str, str]]) -> Record:
    accuracies = _accuracies(rule, summary, clients)
    return {
        **{k: known[k] for k in ("test_accuracy", "val_accuracy", "worst_decile_accuracy", "best_round")},
        "deviation": float(np.std(accuracies)) if accuracies else None,
        "by_capacity": by_capacity([float(c["r"]) for c in clients], accuracies) if accuracies else [],
    }


def _accuracies(rule: str, summary: Mapping[str, Any], clients: list[dict[str, str]]) -> list[float]:
    """Test accuracy of each client; empty if unknown."""
    name = rule if rule in clients[0] else "test_accuracy"
    if name == "test_accuracy" and rule != summary.get("tested", "adapted"):
        return []
    column = _column(clients, name)
    return [] if None in column else [v for v in column if v is not None]


def _column(clients: list[dict[str, str]], name: str) -> list[float | None]:
    texts = [c.get(name) or "" for c in clients]
    return [round(float(t), 4) if t and not math.isnan(float(t)) else None for t in texts]


def by_capacity(r: Sequence[float], accuracies: Sequence[float]) -> list[Record]:
    """Mean accuracy by level where there are few levels, else by fifths; empty where all clients are equal."""
    order = sorted(range(len(r)), key=lambda i: (r[i], i))
    levels = sorted(set(r))
    if len(levels) == 1:
        return []
    if len(levels) <= 8:
        parts = [[i for i in order if r[i] == level] for level in levels]
    else:
        parts = [[order[i] for i in part] for part in np.array_split(np.arange(len(order)), 5)]
    return [{"low": r[p[0]], "high": r[p[-1]], "accuracy": math.fsum(accuracies[i] for i in p) / len(p)} for p in parts]


def multiply_adds(config: Config, clients: Sequence[Mapping[str, str]]) -> dict[int, float]:
    """Forward multiply-adds of each client's local training in one round."""
    arrays = assembly.arrays_of(config)
    method = assembly.make_method(config)
    p_min = config.narrowest()
    model = assembly.make_model(str(config.model), method, arrays.x.shape[1:], arrays.classes, p_min)
    widths = sorted({Fraction(c["width"]) for c in clients})
    each = cost.cost(method, model, p_min, config.batch, widths)
    of_step = {Fraction(r["width"]): r["step_multiply_adds"] for r in each}
    return {
        int(c["client"]): config.epochs * int(c["n_train"]) / config.batch * of_step[Fraction(c["width"])]
        for c in clients
    }


def curve(rounds: Iterable[Mapping[str, Any]], work: Mapping[int, float], tested: str) -> list[Record]:
    """Every evaluation, with the bytes, multiply-adds and seconds until then."""
    points, sent, computed, seconds = [], 0, 0.0, 0.0
    mean_work = math.fsum(work.values()) / len(work)
    for r in rounds:
        sent += r["bytes_down"] + r["bytes_up"]
        computed += math.fsum(work.get(i, mean_work) for i in r["participants"])
        seconds += r["seconds"]
        if "test_accuracy" in r:
            by_rule = r.get("rules") or {tested: r}
            points.append(
                {
                    "round": r["round"],
                    "bytes": sent,
                    "multiply_adds": round(computed),
                    "seconds": round(seconds, 1),
                    "test": {k: round(v["test_accuracy"], 5) for k, v in by_rule.items()},
                    "val": {k: round(v["val_accuracy"], 5) for k, v in by_rule.items()},
                }
            )
    return points


def thinned(points: list[Record]) -> list[Record]:
    """At most `POINTS` of them, evenly, the last one included."""
    if len(points) <= POINTS:
        return points
    return [points[round(i * (len(points) - 1) / (POINTS - 1))] for i in range(POINTS)]


def write(record: Record, folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    # One line for each entry: git shows small differences.
    text = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record.items())
    write_atomically(folder / f"{name}.json", ("{\n" + text + "\n}\n").encode())
    return folder / f"{name}.json"


def read_all(folder: Path) -> list[Record]:
    """The records of all finished runs, by name of file."""
    return [r for path in sorted((folder / "runs").glob("*.json")) if (r := read(path)) is not None]


def read(path: Path) -> Record | None:
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except ValueError as e:
        raise UserError(f"{path} is not valid JSON ({e}): remove it, and its cell will be recorded again") from None
