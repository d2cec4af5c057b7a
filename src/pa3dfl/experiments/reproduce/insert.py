"""Tables within a page that people write: what stands between two marks is made from records."""

import math
from pathlib import Path

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import write_atomically
from pa3dfl.experiments.reproduce import records
from pa3dfl.experiments.reproduce.groups import Column, Row, columns, titled
from pa3dfl.experiments.reproduce.markdown import percent, table
from pa3dfl.experiments.reproduce.overall import embolden
from pa3dfl.experiments.reproduce.page import provenance

BEGIN, END = "<!-- tables: made by pa3dfl reproduce --into -->", "<!-- end of tables -->"


def fill(results: Path, page: Path) -> Path:
    """Make the tables of all records of a folder anew; returns the page."""
    try:
        text = page.read_text()
    except OSError as e:
        raise UserError(f"page {page} cannot be read: {e.strerror}") from None
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UserError(f"page {page} has no place for tables: add the lines {BEGIN} and {END}")
    runs = records.read_all(results)
    if not runs:
        raise UserError(
            f"{results} holds no records: expected {results / 'runs'}/*.json, as pa3dfl reproduce writes them"
        )
    parts = [BEGIN, *(section(column) for column in columns(runs)), provenance(runs), END]
    write_atomically(page, (head + "\n\n".join(parts) + tail).encode())
    return page


def section(column: Column) -> str:
    """Means over clients and then over seeds, in the order of the first rule."""
    rules = column.rules()
    rows = sorted(column.rows, key=lambda row: -(row.rule(rules[0]) or 0))
    levels = [(group["low"], group["high"]) for group in rows[0].runs[0]["rules"][rules[0]]["by_capacity"]]
    headers = ["method", *rules, "worst tenth", *(_level(*level) for level in levels), "rounds", "seeds"]
    cells = [_cells(row, rules, len(levels)) for row in rows]
    for i in range(1, len(headers) - 2):
        embolden(cells, i)
    return f"### {column.title}\n\n" + table(headers, cells)


def _cells(row: Row, rules: list[str], levels: int) -> list[str]:
    groups = [run["rules"][rules[0]]["by_capacity"] for run in row.runs]
    means = [math.fsum(g[i]["accuracy"] for g in groups) / len(groups) for i in range(levels)]
    return [
        titled(row.name),
        *(percent(row.rule(rule), row.deviation(rule)) for rule in rules),
        percent(row.rule(rules[0], "worst_decile_accuracy")),
        *map(percent, means),
        ", ".join(sorted({str(run["rounds"]) for run in row.runs})),
        ", ".join(str(run["seed"]) for run in row.runs),
    ]


def _level(low: float, high: float) -> str:
    return f"r = {100 * low:.3g}%" if low == high else f"r ≤ {100 * high:.3g}%"
