"""Run directories, read back: what a run was asked to do, what each round did, where each client ended."""

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pa3dfl.core.errors import UserError

# What two runs must share before their numbers can be compared.
CONDITIONS = ("data", "setting", "seed", "tested")


@dataclass(frozen=True)
class Run:
    """One run. While it is unfinished, `summary` holds what its rounds so far can say."""

    path: Path
    name: str
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    finished: bool


def read_run(path: Path) -> Run:
    """Reads one run directory; raises UserError where the files are not what a run writes."""
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: give a run directory")
    if not (path / "rounds.jsonl").is_file():
        raise UserError(f"{path} is not a run directory: it has no rounds.jsonl")
    rounds = _read_rounds(path / "rounds.jsonl")
    clients = _read_clients(path / "clients.csv") if (path / "clients.csv").is_file() else []
    finished = (path / "summary.json").is_file()
    if finished:
        summary = _json_object((path / "summary.json").read_text("utf-8", "replace"), path / "summary.json")
    else:
        summary = _summary_so_far(path, rounds, clients)
    name = str(summary.get("method") or path.name)
    return Run(path, name if finished else f"{name} (unfinished)", summary, rounds, clients, finished)


def find_runs(paths: list[Path]) -> list[Run]:
    """Reads every run among `paths`: run directories, or folders of them (one level), each run once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give a run directory or a folder of them")
        candidates = [path] if (path / "rounds.jsonl").is_file() else sorted(path.iterdir())
        for folder in candidates:
            if (folder / "rounds.jsonl").is_file():
                found.setdefault(folder.resolve(), folder)
    if not found:
        places = ", ".join(map(str, paths)) or "an empty list of folders"
        raise UserError(f"no run directories in {places}: a run directory holds a rounds.jsonl")
    return _tell_apart([read_run(folder) for folder in found.values()])


def distinct(rows: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """The different values of `key` among the rows that have one, in order of first appearance."""
    return list(dict.fromkeys(str(row[key]) for row in rows if row.get(key) is not None))


def conditions(row: Mapping[str, Any]) -> list[str]:
    """The known conditions in words, for names and titles."""
    known = [(key, row[key]) for key in CONDITIONS if row.get(key) is not None]
    return [f"{key} {value}" if key in ("seed", "tested") else str(value) for key, value in known]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _tell_apart(runs: list[Run]) -> list[Run]:
    """Adds to the names the conditions that vary, then the folder where even those leave a tie."""
    varying = [key for key in CONDITIONS if len(distinct((run.summary for run in runs), key)) > 1]
    extras = [conditions({key: run.summary.get(key) for key in varying}) for run in runs]
    runs = [replace(run, name=", ".join([run.name, *extra])) for run, extra in zip(runs, extras, strict=True)]
    for tail in (lambda path: path.name, str):
        count = Counter(run.name for run in runs)
        runs = [replace(r, name=f"{r.name}, {tail(r.path)}") if count[r.name] > 1 else r for r in runs]
    return runs


def _json_object(text: str, where: Path | str) -> dict[str, Any]:
    try:
        # NaN (nothing to measure, a loss that blew up) as None stays out of every mean and maximum.
        value = json.loads(text, parse_constant=lambda _: None)
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON ({error}): restore it or leave this run out") from None
    if not isinstance(value, dict):
        raise UserError(f"{where} should hold a JSON object, not {type(value).__name__}")
    return value


def _read_rounds(file: Path) -> list[dict[str, Any]]:
    *lines, tail = file.read_text("utf-8", "replace").split("\n")
    rounds = [_json_object(line, f"{file}, line {n},") for n, line in enumerate(lines, 1)]
    with suppress(UserError):  # a run killed while writing leaves half a line, and never a newline after it
        rounds.append(_json_object(tail, file))
    for n, record in enumerate(rounds, 1):
        if not isinstance(record.get("round"), int):
            raise UserError(f"{file}, line {n}, has no round number: this is not the log of a run")
    return rounds


def _accuracy(text: str) -> float | None:
    value = float(text or "nan")
    return None if math.isnan(value) else value


# Columns that stay text (width is a fraction like 3/16, alpha may be empty) are read with `str`.
_COLUMNS: dict[str, Callable[[str], Any]] = {
    "client": int,
    "r": float,
    "width": str,
    "n_train": int,
    "n_val": int,
    "n_test": int,
    "val_accuracy": _accuracy,
    "test_accuracy": _accuracy,
    "alpha": str,
}


def _read_clients(file: Path) -> list[dict[str, Any]]:
    with file.open(encoding="utf-8", errors="replace", newline="") as lines:
        table = csv.DictReader(lines)
        missing = [column for column in _COLUMNS if column not in (table.fieldnames or [])]
        if missing:
            raise UserError(f"{file} lacks the column(s) {', '.join(missing)}: its header is not a run's")
        clients = []
        for row in table:
            try:
                clients.append({column: read(row[column]) for column, read in _COLUMNS.items()})
            except (TypeError, ValueError) as error:  # TypeError: a short row reads as None
                raise UserError(f"{file}, line {table.line_num}, is not a client's row ({error})") from None
    return clients


def _summary_so_far(path: Path, rounds: list[dict], clients: list[dict]) -> dict[str, Any]:
    config = _flat_config(path / "config.yaml")
    evaluated = [record for record in rounds if record.get("test_accuracy") is not None]
    best = max(evaluated, key=lambda record: record.get("val_accuracy") or 0.0, default={})
    # The clients' rows go first: a method may keep each client's own best round, which no round's record has.
    kept = {key: mean(client[key] for client in clients) for key in ("test_accuracy", "val_accuracy")}
    return {
        **{key: config.get(key) for key in ("method", *CONDITIONS)},
        "rounds": rounds[-1]["round"] if rounds else 0,
        "best_round": best.get("round"),
        **{key: best.get(key) if value is None else value for key, value in kept.items()},
        "worst_decile_accuracy": best.get("worst_decile_accuracy"),
        "rules": best.get("rules", {}),
        "seconds": sum(record.get("seconds") or 0.0 for record in rounds),
    }


def _flat_config(file: Path) -> dict[str, Any]:
    """The scalars of a flat YAML mapping: enough to say which run this is without a YAML reader."""
    config: dict[str, Any] = {}
    for line in file.read_text("utf-8", "replace").splitlines() if file.is_file() else []:
        key, colon, value = line.partition(": ")
        if colon:
            config[key] = value.strip().strip("'\"")
            with suppress(ValueError):
                config[key] = json.loads(value)
    return config


def average(runs: Sequence[Run]) -> Run:
    """Several seeds of one method as one run: mean curves, everybody's clients, no best round of their own."""
    first = runs[0]
    if len(runs) == 1:
        return replace(first, name=str(first.summary.get("method")))
    curves = [{r["round"]: r["test_accuracy"] for r in run.rounds if "test_accuracy" in r} for run in runs]
    common = sorted(set.intersection(*(set(c) for c in curves)))
    rounds = [{"round": r, "test_accuracy": mean(c[r] for c in curves)} for r in common]
    facts = {k: v for k, v in first.summary.items() if k not in ("seed", "best_round")}
    return Run(
        first.path.parent, str(facts.get("method")), facts, rounds, [c for run in runs for c in run.clients],
        all(run.finished for run in runs),
    )  # fmt: skip
