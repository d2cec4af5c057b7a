"""The accuracy of newcomers after k rounds of their own, beside that of the other clients: records and a table."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pa3dfl.core.options.config import RULES_OF_TESTING
from pa3dfl.runs.metrics import mean
from pa3dfl.runs.run import Run


def of_newcomers(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """One record for each run with newcomers and each rule of testing, ready for JSON.

    `after` holds [k, mean test accuracy of the newcomers after k rounds]; `trained_in` the mean of the other clients.
    `within` is the smallest k at which newcomers have 95% of that, None if they never do.
    """
    records = []
    for run in runs:
        for rule in RULES_OF_TESTING:
            own = [row for row in run.newcomers if row["rule"] == rule]
            if own:
                records.append(_record(run, rule, own))
    return records


def _record(run: Run, rule: str, own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    after = [(k, mean(row["test_accuracy"] for row in own if row["k"] == k)) for k in sorted({r["k"] for r in own})]
    trained_in = (run.summary.get("rules") or {}).get(rule, {}).get("test_accuracy")
    near = [k for k, accuracy in after if trained_in and accuracy and accuracy >= 0.95 * trained_in]
    return {
        "name": run.name,
        "method": run.summary.get("method"),
        "seed": run.summary.get("seed"),
        "rule": rule,
        "newcomers": len({row["client"] for row in own}),
        "trained_in": trained_in,
        "after": [list(pair) for pair in after],
        "within": min(near, default=None),
        "path": str(run.path),
    }


def render_newcomers(records: Sequence[dict[str, Any]], console: Console) -> None:
    rounds = sorted({k for record in records for k, _ in record["after"]})
    title = "newcomers after k rounds of their own, beside clients that were trained in"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold")
    table.add_column("rule")
    for header in ("new-\ncomers", "trained\nin", *(f"k = {k}" for k in rounds), "95%\nat k ="):
        table.add_column(header, justify="right", no_wrap=True)
    for record in records:
        after = dict(record["after"])
        within = "–" if record["within"] is None else str(record["within"])
        cells = [_percent(record["trained_in"]), *(_percent(after.get(k)) for k in rounds), within]
        table.add_row(Text(record["name"]), record["rule"], str(record["newcomers"]), *cells)
    console.print(table)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
