"""Runs side by side: records for programs, a table for people."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pa3dfl.core.options.config import RULES_OF_TESTING
from pa3dfl.runs.metrics import mean, worst_decile
from pa3dfl.runs.run import CONDITIONS, Run, average, conditions, distinct

_NONE = "–"
# More levels of capacity than this are shown as fifths of the clients.
MOST_LEVELS = 5
_AVERAGED = ("test_accuracy", "val_accuracy", "worst_decile_accuracy", "bytes_up", "bytes_down", "seconds")


def comparison(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """One record per run, ready for JSON; what is not known of a run is None.

    `by_capacity` holds the mean test accuracy of each level of capacity r, lowest first, or of each fifth of the
    clients where there are more than five levels; `capacities` holds the [lowest, highest] r within each. Both are
    empty where all clients are equal. `rules` holds the mean test accuracy by every rule of testing that was measured.
    Bytes are those of all clients in a mean round.
    """
    return [_record(run) for run in runs]


def across_seeds(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One record per method: means over its runs, and the standard deviation of their mean accuracies."""
    records = []
    for method in dict.fromkeys(str(run.summary.get("method")) for run in runs):
        own = [run for run in runs if run.summary.get("method") == method]
        each = comparison(own)
        accuracies = [row["test_accuracy"] for row in each if row["test_accuracy"] is not None]
        records.append(
            comparison([average(own)])[0]
            | {key: mean(row[key] for row in each if row[key] is not None) for key in _AVERAGED}
            | {"rules": {rule: mean(row["rules"].get(rule) for row in each) for rule in _rules(each)}}
            | {"runs": len(own), "deviation": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None}
        )
    return records


def render(records: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the comparison in percent, with the best of each accuracy column in bold."""
    labels = capacity_labels(records)
    # The column "mean" is by the rule that chose the best round; the other rules have columns of their own.
    others = [rule for rule in _rules(records) if any(row["tested"] != rule for row in records)]
    headers = ["mean", "worst\ntenth", *(label.replace(" ", "\n", 1) for label in labels), *others]
    rows = [
        [
            row["test_accuracy"],
            row["worst_decile_accuracy"],
            *(row["by_capacity"] + [None] * (len(labels) - len(row["by_capacity"]))),
            *(row["rules"].get(rule) for rule in others),
        ]
        for row in records
    ]
    # Compared as printed, so that two equal-looking numbers are both bold or both plain.
    shown = [[_shown(value, 100, ".1f") for value in row] for row in rows]
    columns = [[cell for cell in column if cell != _NONE] for column in zip(*shown, strict=True)]
    best = [max(column, key=float) if len(records) > 1 and column else None for column in columns]

    values = {key: distinct(records, key) for key in CONDITIONS}
    title = Text(" · ".join(conditions({key: found[0] for key, found in values.items() if len(found) == 1})))
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold")
    # Tables across seeds have more columns, for wider screens.
    wide = any("runs" in row for row in records)
    spread = any(row.get("deviation") is not None for row in records)
    extra, traffic_header = ["±"] * spread, ["MB up\na round", "MB\ndown"] if wide else []
    for header in [*headers[:1], *extra, *headers[1:], *traffic_header, "best\nround", "time"]:
        table.add_column(header, justify="right", no_wrap=True)
    for row, cells in zip(records, shown, strict=True):
        accuracies = [Text(c, "bold" if c == top else "") for c, top in zip(cells, best, strict=True)]
        best_round = _NONE if row["best_round"] is None else str(row["best_round"])
        time = _NONE if row["seconds"] is None else str(timedelta(seconds=round(row["seconds"])))
        deviation = [_shown(row["deviation"], 100, ".1f")] if spread else []
        traffic = [_shown(row[key], 1e-6, ".3g") for key in ("bytes_up", "bytes_down")] if wide else []
        table.add_row(Text(row["name"]), accuracies[0], *deviation, *accuracies[1:], *traffic, best_round, time)
    console.print(table)

    if labels and labels[0].startswith("part"):
        console.print("part 1: the clients with the least capacity r", highlight=False)
    if differ := [f"{key} ({', '.join(found)})" for key, found in values.items() if len(found) > 1]:
        console.print(f"Note: these runs differ in {', '.join(differ)}.", markup=False, highlight=False)


def capacity_labels(records: Iterable[dict[str, Any]]) -> list[str]:
    """A name for each part of the clients by capacity: its level, or its highest r, where it is equal in all runs."""
    found = {tuple(_labels(row["capacities"])) for row in records if row["capacities"]}
    if len(found) > 1:
        return [f"part {i}" for i in range(1, max(map(len, found)) + 1)]
    return list(found.pop()) if found else []


def _record(run: Run) -> dict[str, Any]:
    capacities, accuracies = _by_capacity(run.clients)
    known = run.summary.get
    tested = [c["test_accuracy"] for c in run.clients if c["test_accuracy"] is not None]
    return {
        "name": run.name,
        "method": known("method"),
        **{key: known(key) for key in CONDITIONS},
        "rounds": known("rounds"),
        "best_round": known("best_round"),
        "test_accuracy": known("test_accuracy"),
        "worst_decile_accuracy": worst_decile(tested) if tested else known("worst_decile_accuracy"),
        "rules": {rule: values["test_accuracy"] for rule, values in (known("rules") or {}).items()},
        "by_capacity": accuracies,
        "capacities": capacities,
        "val_accuracy": known("val_accuracy"),
        **{key: mean(r.get(key) for r in run.rounds) for key in ("bytes_up", "bytes_down")},
        "seconds": known("seconds"),
        "path": str(run.path),
        "finished": run.finished,
    }


def _by_capacity(clients: Sequence[dict[str, Any]]) -> tuple[list[list[float]], list[float | None]]:
    levels = sorted({client["r"] for client in clients})
    if len(levels) < 2:
        return [], []
    if len(levels) <= MOST_LEVELS:
        parts = [[client for client in clients if client["r"] == r] for r in levels]
    else:
        ranked = sorted(clients, key=lambda client: (client["r"], client["client"]))
        parts = [[ranked[i] for i in part] for part in np.array_split(np.arange(len(ranked)), 5)]
    spans = [[part[0]["r"], part[-1]["r"]] for part in parts]
    return spans, [mean(client["test_accuracy"] for client in part) for part in parts]


def _rules(records: Iterable[dict[str, Any]]) -> list[str]:
    """The rules of testing by which any of the records has an accuracy."""
    measured = {rule for row in records for rule in row["rules"]}
    return [rule for rule in RULES_OF_TESTING if rule in measured]


def _labels(spans: Sequence[Sequence[float]]) -> list[str]:
    sign = "=" if all(low == high for low, high in spans) else "≤"
    return [f"r {sign} {_percent(high)}" for _, high in spans]


def _shown(value: float | None, factor: float, form: str) -> str:
    return _NONE if value is None else format(value * factor, form)


def _percent(r: float) -> str:
    return f"{100 * r:.0f}%" if r >= 0.1 else f"{100 * r:.2g}%"
