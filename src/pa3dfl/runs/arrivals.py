"""The accuracy of newcomers after k rounds of their own, beside that of the other clients: records and a table."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pa3dfl.core.options.config import RULES_OF_TESTING
from pa3dfl.runs.metrics import mean
from pa3dfl.runs.run import Run, conditions, distinct

# Runs that differ in nothing of this are seeds of one experiment.
SAME = ("data", "setting")
ENOUGH = 0.95


def of_newcomers(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """One record for each method and rule of testing, over the seeds of its runs with newcomers, ready for JSON.

    `after` holds [k, mean test accuracy of the newcomers after k rounds], `trained_in` the mean of the other clients:
    both are means of the runs' means. `within` is the smallest k at which newcomers have 95% of that, None if never.
    """
    late = [run for run in runs if run.newcomers]
    varying = [key for key in SAME if len(distinct((run.summary for run in late), key)) > 1]
    groups: dict[str, list[Run]] = {}
    for run in late:
        words = [str(run.summary.get("method")), *conditions({key: run.summary.get(key) for key in varying})]
        groups.setdefault(", ".join(words), []).append(run)
    by_rule = [(name, own, rule) for name, own in groups.items() for rule in RULES_OF_TESTING]
    return [_record(*one) for one in by_rule if any(row["rule"] == one[2] for run in one[1] for row in run.newcomers)]


def _record(name: str, runs: Sequence[Run], rule: str) -> dict[str, Any]:
    tables = [[row for row in run.newcomers if row["rule"] == rule] for run in runs]
    rounds = sorted(set.intersection(*({row["k"] for row in table} for table in tables)))
    after = [(k, mean(mean(r["test_accuracy"] for r in table if r["k"] == k) for table in tables)) for k in rounds]
    trained_in = mean((run.summary.get("rules") or {}).get(rule, {}).get("test_accuracy") for run in runs)
    near = [k for k, accuracy in after if trained_in and accuracy and accuracy >= ENOUGH * trained_in]
    return {
        "name": name,
        "method": runs[0].summary.get("method"),
        "seeds": [run.summary.get("seed") for run in runs],
        "rule": rule,
        "newcomers": sum(len({row["client"] for row in table}) for table in tables),
        "trained_in": trained_in,
        "after": [list(pair) for pair in after],
        "within": min(near, default=None),
        "paths": [str(run.path) for run in runs],
    }


def render_newcomers(records: Sequence[dict[str, Any]], console: Console) -> None:
    rounds = sorted({k for record in records for k, _ in record["after"]})
    title = "newcomers after k rounds of their own, beside clients that were trained in"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold")
    table.add_column("rule")
    for header in ("runs", "new-\ncomers", "trained\nin", *(f"k = {k}" for k in rounds), "95%\nat k ="):
        table.add_column(header, justify="right", no_wrap=True)
    for record in records:
        after = dict(record["after"])
        within = "–" if record["within"] is None else str(record["within"])
        counts = str(len(record["seeds"])), str(record["newcomers"])
        cells = [_percent(record["trained_in"]), *(_percent(after.get(k)) for k in rounds), within]
        table.add_row(Text(record["name"]), record["rule"], *counts, *cells)
    console.print(table)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
