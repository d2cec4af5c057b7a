"""Tuning: one run for every setting of a grid; validation accuracy alone chooses the best."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pa3dfl import methods
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.files import write_atomically
from pa3dfl.core.options.config import Config, of_method
from pa3dfl.core.options.schema import coerce
from pa3dfl.experiments.compare import begun, complete
from pa3dfl.experiments.grid import Fields, Grid, Point, check_names, paper_grid, points, sample, tunable
from pa3dfl.methods import assembly
from pa3dfl.runs.format import RunDirectory, write_csv

# Published results use these seeds: options tuned on one of them would be tested on the data that chose them.
PUBLISHED = range(10)
COLUMNS = ("method", "options", "seed", "val_accuracy", "best_round", "seconds", "path", "reason")


@dataclass(frozen=True)
class Trial:
    point: Point
    config: Config


def plan(
    given: Mapping[str, Any], names: Sequence[str], grid: Grid, seeds: Sequence[int], out: Path, n: int | None = None
) -> list[Trial]:
    """All trials in grid order, every one of them checked; an empty grid means the paper's."""
    for seed in set(seeds) & set(PUBLISHED):
        raise UserError(f"seed {seed} is for published results: tune on seeds from {max(PUBLISHED) + 1}, such as 1000")
    fields = {name: tunable(assembly.option_fields(methods.find(name))) for name in names}
    check_names(grid, list({k: None for own in fields.values() for k in own}), list(given))
    trials = []
    for name, own in fields.items():
        choices = points(grid or paper_grid(name, list(given)), own)
        if choices == [{}]:
            raise UserError(f"nothing is left to tune of {name}: name its options with --grid")
        settings = sample(name, choices, n, seeds[0])
        for point in settings:
            for seed in seeds:
                path = out / f"{name.replace(':', '-')}-{_slug(point)}-{seed}"
                config = assembly.configure({**given, **point, "method": name, "seed": seed, "out": str(path)})
                assembly.make_method(config)
                begun(config)
                trials.append(Trial(point, config))
    return trials


def run(trials: Sequence[Trial], out: Path) -> list[dict[str, Any]]:
    """Train what is missing; `trials.jsonl` and `trials.csv` hold all trials in this folder."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "trials.jsonl"
    earlier = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    tried = {record["path"]: record for record in earlier}
    records = []
    for trial in trials:
        record = _record(trial)
        tried[record["path"]] = record
        records.append(record)
        write_atomically(file, "".join(json.dumps(r) + "\n" for r in tried.values()).encode())
        rows = ([shown(r["options"]) if c == "options" else r[c] for c in COLUMNS] for r in tried.values())
        write_csv(out / "trials.csv", COLUMNS, rows)
    return records


def ranking(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per method and setting, best mean validation accuracy first; equal ones in grid order, failed ones last.

    A setting that failed with one seed is not chosen for its results with others.
    """
    rows = []
    for method in dict.fromkeys(r["method"] for r in records):
        own = [r for r in records if r["method"] == method]
        settings = dict.fromkeys(shown(r["options"]) for r in own)
        ranked = [_row([r for r in own if shown(r["options"]) == setting]) for setting in settings]
        rows += sorted(ranked, key=lambda r: (r["val_accuracy"] is None, -(r["val_accuracy"] or 0)))
    return rows


def best(given: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A config for `run` and `compare`: what was given, and under `methods` what was chosen for each."""
    setting, by_method = str(given.get("setting", Config.setting)), dict(given.get("methods") or {})
    chosen: dict[str, Any] = {}
    for row in rows:
        name = row["method"]
        if name not in chosen and row["val_accuracy"] is not None:
            own = _typed(given, assembly.option_fields(methods.find(name)))
            chosen[name] = of_method(by_method, name, setting) | own | row["options"]
    if not chosen:
        reason = next(r["reason"] for r in rows)
        raise UserError(f"no trial succeeded, see trials.csv; the first of them: {reason}")
    # Every method of a comparison reads this file: outside `methods` stand only options that all methods have.
    task = {f.name: f for f in dataclasses.fields(Config) if f.name not in ("method", "seed", "out", "options")}
    single = {"method": next(iter(chosen))} if len(chosen) == 1 else {}
    return single | _typed(given, task) | {"methods": by_method | chosen}


def write_best(config: Mapping[str, Any], out: Path) -> Path:
    head = "# Chosen by validation accuracy; every trial is in trials.csv.\n"
    write_atomically(out / "best.yaml", (head + yaml.safe_dump(dict(config), sort_keys=False)).encode())
    return out / "best.yaml"


def shown(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in point.items())


def _typed(given: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """What was given of these fields; flags give text."""
    return {k: coerce(k, given[k], f.type) for k, f in fields.items() if given.get(k) is not None}


def _record(trial: Trial) -> dict[str, Any]:
    directory = RunDirectory(Path(trial.config.out or ""))
    record = dict.fromkeys(COLUMNS) | {
        "method": trial.config.method,
        "options": trial.point,
        "seed": trial.config.seed,
        "path": str(directory.path),
    }
    try:
        complete(trial.config)
    except (Interrupted, OSError):  # not caused by the trial: the next one would fail in the same way
        raise
    except UserError as e:
        return record | {"reason": str(e)}
    except Exception as e:
        return record | {"reason": f"{type(e).__name__}: {' '.join(str(e).split())}"}
    summary = json.loads(directory.summary.read_text())
    record |= {k: summary[k] for k in ("val_accuracy", "best_round", "seconds")}
    last = json.loads(directory.rounds.read_text().splitlines()[-1])
    if not math.isfinite(last["train_loss"]):
        record |= {"reason": f"diverged: the training loss of round {last['round']} is {last['train_loss']}"}
    return record


def _row(tried: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One setting over its seeds."""
    reason = next((r["reason"] for r in tried if r["reason"]), None)
    values = [r["val_accuracy"] for r in tried]
    mean = None if reason else math.fsum(values) / len(values)
    spread = None
    if mean is not None and len(values) > 1:
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return {
        "method": tried[0]["method"],
        "options": dict(tried[0]["options"]),
        "val_accuracy": mean,
        "deviation": spread,
        "best_round": [r["best_round"] for r in tried],
        "seconds": math.fsum(r["seconds"] or 0.0 for r in tried),
        "reason": reason,
    }


def _slug(point: Point) -> str:
    text = "-".join(f"{k}={v}" for k, v in point.items())
    name = "".join(c if c.isalnum() or c in "=._-+" else "-" for c in text)
    # File systems take 255 bytes.
    return name if len(name) <= 160 else name[:150] + hashlib.sha256(text.encode()).hexdigest()[:8]
