"""What a page shows, from run directories: plain lists and whole numbers, which compress well.

The size of a page is limited: it shows a sample of many clients, and every k-th of many evaluations. Means and headline
are over all clients.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import RULES_OF_TESTING
from pa3dfl.runs.page.network import network
from pa3dfl.runs.page.terms import names
from pa3dfl.runs.rundata import RunData, load, read_rounds, read_table

CLIENTS = 400
CELLS = 120_000
"""The largest number of evaluations × clients, over all runs."""
EVENTS = 4000
GROUPS = 10
"""Labels are shown in as many colours; more labels share them in order."""
OWN = ("client", "r", "width", "share", "n_train", "val_accuracy", "test_accuracy", "alpha", *RULES_OF_TESTING)


def find(paths: Sequence[Path]) -> list[RunData]:
    """Run directories among `paths`, or one level below them; those that have begun."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give a run directory or a folder of them")
        for folder in [path] if (path / "config.yaml").is_file() else sorted(path.iterdir()):
            if (folder / "config.yaml").is_file() and (folder / "rounds.jsonl").is_file():
                found.setdefault(folder.resolve(), folder)
    if not found:
        raise UserError(f"no run directories in {', '.join(map(str, paths))}: a run directory holds a config.yaml")
    return [load(folder) for folder in found.values()]


def content(runs: Sequence[RunData]) -> dict[str, Any]:
    people: list[Any] = []
    cells = max(1, CELLS // len(runs))
    shown = [of_run(run, name, cells, people) for run, name in zip(runs, names(runs), strict=True)]
    return {"rules": RULES_OF_TESTING, "people": people, "runs": shown}


def of_run(run: RunData, name: str, cells: int, people: list[Any]) -> dict[str, Any]:
    rounds, everybody = read_rounds(run.path), [row for row in run.client_rows if not row.get("newcomer")]
    history = [(rnd, arrays) for rnd, arrays in run.history()]
    by_id = {row["client"]: row for row in everybody}
    tested_once = {i for _, arrays in history for i in arrays["client"].tolist()}
    never = {i for i, row in by_id.items() if row["test_accuracy"] is None} - tested_once
    ids = sample(sorted((tested_once & by_id.keys()) | never if history else by_id))
    chosen = [by_id[i] for i in ids]
    labels = run.labels()
    who = {
        "id": ids,
        "names": [row["name"] for row in chosen] if any(row.get("name") for row in chosen) else None,
        "r": [row["r"] for row in chosen],
        "n": [row["n_train"] for row in chosen],
        "labels": [grouped(labels[i]) if i in labels else None for i in ids],
        "dominant": [int(labels[i].argmax()) if i in labels else None for i in ids],
        "classes": len(next(iter(labels.values()))) if labels else 0,
    }
    if who not in people:
        people.append(who)
    step = math.ceil(len(history) * len(ids) / cells)
    kept = [it for k, it in enumerate(reversed(history)) if k % max(step, 1) == 0][::-1]
    tested = str(run.config.get("tested", RULES_OF_TESTING[0]))
    return {
        "method": name,
        "seed": run.config.get("seed"),
        "data": str(run.config.get("data")),
        "setting": str(run.config.get("setting")),
        "tested": tested,
        "finished": run.summary is not None,
        "rounds": rounds[-1]["round"] if rounds else 0,
        "planned": run.config.get("rounds"),
        "best_round": best_round(run, rounds),
        "everybody": len(everybody),
        "people": people.index(who),
        "width": [str(row["width"]) for row in chosen],
        "chosen": {rule: [scaled(row.get(rule)) for row in chosen] for rule in RULES_OF_TESTING}
        | {"alpha": [scaled(row["alpha"], 100) for row in chosen]},
        "evaluations": [of_evaluation(rnd, arrays, ids) for rnd, arrays in kept],
        "every": step if step > 1 else 1,
        "about": {k: v for k, v in run.about.items() if k in ("clients_tested", "clients_kept", "evaluations_kept")},
        "curve": curve(run, rounds, by_id, tested),
        "network": network(history, ids),
        "newcomers": newcomers(run),
        **participation(run, rounds, ids, by_id),
    }


def sample(ids: list[int]) -> list[int]:
    if len(ids) <= CLIENTS:
        return ids
    return sorted(np.random.default_rng(0).choice(ids, CLIENTS, replace=False).tolist())


def grouped(counts: np.ndarray) -> list[int]:
    group = np.arange(len(counts)) * min(GROUPS, len(counts)) // len(counts)
    return [int(n) for n in np.bincount(group, counts)]


def best_round(run: RunData, rounds: list[dict[str, Any]]) -> int | None:
    if run.summary is not None:
        return run.summary.get("best_round")
    evaluated = [r for r in rounds if r.get("val_accuracy") is not None]
    return max(evaluated, key=lambda r: r["val_accuracy"])["round"] if evaluated else None


def of_evaluation(rnd: int, arrays: dict[str, np.ndarray], ids: list[int]) -> dict[str, Any]:
    place = {i: k for k, i in enumerate(arrays["client"].tolist())}
    columns = {**dict.fromkeys(RULES_OF_TESTING, 1e4), "loss": 1e3, "alpha": 100.0}
    found = {k: (arrays[k].tolist(), factor) for k, factor in columns.items() if k in arrays}
    return {"round": rnd} | {
        k: [scaled(values[place[i]], factor) if i in place else None for i in ids]
        for k, (values, factor) in found.items()
    }


def curve(run: RunData, rounds: list[dict[str, Any]], by_id: dict[int, Any], tested: str) -> dict[str, Any]:
    """Means at each evaluation, and the cost until then."""
    work = multiply_adds(run, by_id)
    bytes_, seconds, operations = 0.0, 0.0, 0.0
    points: dict[str, list[Any]] = {k: [] for k in ("round", "bytes", "seconds", "operations", *RULES_OF_TESTING)}
    for record in rounds:
        bytes_ += record.get("bytes_down", 0) + record.get("bytes_up", 0)
        seconds += record.get("seconds", 0)
        operations += sum(work.get(i, 0) for i in record.get("participants", ()))
        if record.get("test_accuracy") is None:
            continue
        means = {rule: values.get("test_accuracy") for rule, values in record.get("rules", {}).items()}
        means.setdefault(tested, record["test_accuracy"])
        for key, value in (("round", record["round"]), ("bytes", bytes_), ("seconds", seconds)):
            points[key].append(round(value, 3))
        points["operations"].append(operations if work else None)
        for rule in RULES_OF_TESTING:
            points[rule].append(scaled(means.get(rule)))
    return points


def multiply_adds(run: RunData, by_id: dict[int, Any]) -> dict[int, float]:
    """Forward multiply-adds of one local training of each client; empty if unknown."""
    of_step = run.about.get("forward_multiply_adds_of_a_step") or {}
    epochs, batch = run.config.get("epochs", 1), run.config.get("batch", 1)
    if not of_step or None in of_step.values():
        return {}
    return {
        i: epochs * math.ceil(row["n_train"] / batch) * of_step.get(str(row["width"]), 0) for i, row in by_id.items()
    }


def participation(run: RunData, rounds: list[dict[str, Any]], ids: list[int], by_id: dict[int, Any]) -> dict[str, Any]:
    trained = Counter(i for r in rounds for i in r.get("participants", ()))
    rejected = [
        (r["round"], e["client"], str(e.get("reason", ""))[:200]) for r in rounds for e in r.get("rejected", ())
    ]
    missing = [(r["round"], i) for r in rounds for i in (*r.get("missing", ()), *r.get("untested", ()))]
    sizes = run.about.get("bytes_received_of_a_round") or {}
    known = set(ids) | ({i for _, i, *_ in (*rejected, *missing)} - by_id.keys())  # some were never tested
    return {
        "trained": [trained[i] for i in ids],
        "bytes": [trained[i] * sizes[w] if (w := str(by_id[i]["width"])) in sizes else None for i in ids],
        "rejected": [e for e in rejected if e[1] in known][:EVENTS],
        "missing": [e for e in missing if e[1] in known][:EVENTS],
        "events": [len(rejected), len(missing)],
    }


def newcomers(run: RunData) -> list[dict[str, Any]]:
    """For each rule of testing, the mean accuracy of the newcomers after each number of rounds of their own."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in read_table(run.path / "newcomers.csv"):
        if row["test_accuracy"] is not None:
            found.setdefault(row["rule"], {}).setdefault(row["k"], []).append(row["test_accuracy"])
    others = (run.summary or {}).get("rules", {})
    return [
        {
            "rule": rule,
            "clients": max(map(len, by_k.values())),
            "after": [[k, scaled(float(np.mean(by_k[k])))] for k in sorted(by_k)],
            "others": scaled(others.get(rule, {}).get("test_accuracy")),
        }
        for rule, by_k in found.items()
    ]


def scaled(value: float | None, factor: float = 1e4) -> int | None:
    return None if value is None or math.isnan(value) else round(value * factor)
