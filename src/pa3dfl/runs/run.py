"""Runs read back from their directories, named so that several can stand side by side."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pa3dfl.core.errors import UserError
from pa3dfl.runs.format import RunDirectory
from pa3dfl.runs.metrics import mean

# What two runs must share before their numbers can be compared.
CONDITIONS = ("data", "setting", "seed", "tested")


@dataclass(frozen=True)
class Run:
    """One run. The `summary` of an unfinished one holds what follows from its rounds so far."""

    path: Path
    name: str
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    finished: bool
    newcomers: list[dict[str, Any]] = field(default_factory=list)


def read_run(path: Path) -> Run:
    """Read one run directory; raises UserError where the files are not what a run writes."""
    files = RunDirectory(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: give a run directory")
    if not files.rounds.is_file():
        raise UserError(f"{path} is not a run directory: it has no {files.rounds.name}")
    rounds = files.read_rounds()
    clients = files.read_clients() if files.clients.is_file() else []
    newcomers = files.read_newcomers() if files.newcomers.is_file() else []
    finished = files.summary.is_file()
    summary = files.read_summary() if finished else _summary_so_far(files, rounds, clients)
    name = str(summary.get("method") or path.name)
    return Run(path, name if finished else f"{name} (unfinished)", summary, rounds, clients, finished, newcomers)


def find_runs(paths: list[Path]) -> list[Run]:
    """Read every run among `paths`, which are run directories or folders of them (one level), once each."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give a run directory or a folder of them")
        candidates = [path] if RunDirectory(path).rounds.is_file() else sorted(path.iterdir())
        for folder in candidates:
            if RunDirectory(folder).rounds.is_file():
                found.setdefault(folder.resolve(), folder)
    if not found:
        places = ", ".join(map(str, paths)) or "an empty list of folders"
        raise UserError(f"no run directories in {places}: a run directory holds a rounds.jsonl")
    return _tell_apart([read_run(folder) for folder in found.values()])


def distinct(rows: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """The different values of `key` among the rows that have one, in order of first appearance."""
    return list(dict.fromkeys(str(row[key]) for row in rows if row.get(key) is not None))


def conditions(row: Mapping[str, Any]) -> list[str]:
    """The known conditions as words, for names and titles."""
    known = [(key, row[key]) for key in CONDITIONS if row.get(key) is not None]
    return [f"{key} {value}" if key in ("seed", "tested") else str(value) for key, value in known]


def _tell_apart(runs: list[Run]) -> list[Run]:
    """Add to the names the conditions that differ, then the folder where names are still equal."""
    varying = [key for key in CONDITIONS if len(distinct((run.summary for run in runs), key)) > 1]
    extras = [conditions({key: run.summary.get(key) for key in varying}) for run in runs]
    runs = [replace(run, name=", ".join([run.name, *extra])) for run, extra in zip(runs, extras, strict=True)]
    for tail in (lambda path: path.name, str):
        count = Counter(run.name for run in runs)
        runs = [replace(r, name=f"{r.name}, {tail(r.path)}") if count[r.name] > 1 else r for r in runs]
    return runs


def _summary_so_far(files: RunDirectory, rounds: list[dict[str, Any]], clients: list[dict[str, Any]]) -> dict[str, Any]:
    config = files.read_config() if files.config.is_file() else {}
    evaluated = [record for record in rounds if record.get("test_accuracy") is not None]
    best = max(evaluated, key=lambda record: record.get("val_accuracy") or 0.0, default={})
    # First from the clients' rows: a method may choose each client's own best round, which no record of a round has.
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


def average(runs: Sequence[Run]) -> Run:
    """Several seeds of one method as one run: the mean curve and the clients of all, without a best round."""
    first = runs[0]
    if len(runs) == 1:
        return replace(first, name=str(first.summary.get("method")))
    curves = [{r["round"]: r["test_accuracy"] for r in run.rounds if "test_accuracy" in r} for run in runs]
    common = sorted(set.intersection(*(set(c) for c in curves)))
    rounds = [{"round": r, "test_accuracy": mean(c[r] for c in curves)} for r in common]
    facts = {k: v for k, v in first.summary.items() if k not in ("seed", "best_round")}
    return Run(
        first.path.parent, str(facts.get("method")), facts, rounds, [c for run in runs for c in run.clients],
        all(run.finished for run in runs), [c for run in runs for c in run.newcomers],
    )  # fmt: skip
