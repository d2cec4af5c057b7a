"""The paper's main table beside the table of these runs; accuracy for equal traffic and equal computation."""

import math
from collections.abc import Sequence

from pa3dfl.core.words import counted
from pa3dfl.experiments.reproduce import paper
from pa3dfl.experiments.reproduce.groups import Column, Row, titled
from pa3dfl.experiments.reproduce.markdown import EMPTY, amount, percent, signed, table
from pa3dfl.experiments.reproduce.records import RULES


def section(column: Column) -> str:
    parts = [f"### {column.title}", accuracies(column)]
    if column.model != paper.numbers()["models"].get(column.data, column.model):
        parts.append(f"The paper trains another model here, so that its values do not apply to {column.model}.")
    if own := column.row("pa3dfl"):
        values = ", ".join(sorted({r["config"].get("keep", "none") for r in own.runs}))
        parts.append(f"Pa3dFL's clients kept for the rule *received* (option `keep`): {values}.")
    if column.older:
        parts.append(f"Left out: {counted(column.older, 'older run')} of these cells, with other options.")
    for what, unit, scale in (("bytes", "MB sent", 1e6), ("multiply_adds", "10¹² multiply-adds", 1e12)):
        if text := equal_cost(column, what, unit, scale):
            parts.append(text)
    return "\n\n".join(parts)


def names(column: Column) -> list[str]:
    """All twelve methods, then what else was run; Pa3dFL with other options is for the figures."""
    own = [row.name for row in column.rows if not row.name.startswith("pa3dfl@")]
    return list(dict.fromkeys([*paper.order(), *own]))


def accuracies(column: Column) -> str:
    rules = column.rules() or list(RULES)
    headers = ["method", "paper", *rules, f"{rules[0]} − paper", "worst tenth", "rounds", "seeds", "precision"]
    rows = [_cells(column, name, rules) for name in names(column)]
    for i in range(2, 2 + len(rules)):
        embolden(rows, i)
    return table(headers, rows)


def embolden(rows: list[list[str]], column: int) -> None:
    """The best value of a column, compared as printed, where there are several."""
    values = {i: float(cells[column].split()[0]) for i, cells in enumerate(rows) if cells[column] != EMPTY}
    for i, value in values.items():
        if len(values) > 1 and value == max(values.values()):
            rows[i][column] = f"**{rows[i][column]}**"


def _cells(column: Column, name: str, rules: Sequence[str]) -> list[str]:
    printed = paper.accuracy(column.data, column.setting, name, column.model)
    theirs = EMPTY if printed is None else f"{printed[0]:.2f} ± {printed[1]:.2f}"
    row = column.row(name)
    if row is None:
        return [titled(name), theirs, *[EMPTY] * (len(rules) + 5)]
    ours = row.rule(rules[0])
    difference = None if printed is None or ours is None else 100 * ours - printed[0]
    return [
        titled(name),
        theirs,
        *(percent(row.rule(rule), row.deviation(rule)) for rule in rules),
        signed(difference),
        percent(row.rule(rules[0], "worst_decile_accuracy")),
        _rounds(row),
        ", ".join(str(r["seed"]) for r in row.runs),
        ", ".join(sorted({r["precision"] for r in row.runs})),
    ]


def _rounds(row: Row) -> str:
    done = sorted({r["rounds"] for r in row.runs})
    length = f"{done[0]}–{done[-1]}" if len(done) > 1 else str(done[0])
    early = ", stopped early" if any(r["stopped_early"] for r in row.runs) else ""
    whole = row.runs[0]["paper_rounds"]
    return length + (f" of {whole}" if whole else "") + early


def equal_cost(column: Column, what: str, unit: str, scale: float) -> str:
    """Accuracy by rule for equal cost, and what each method spends in all.

    Budgets range from the smallest in which every method was tested to the cost of the most expensive run.
    """
    curves = [run["curve"] for row in column.rows for run in row.runs if run["curve"]]
    if len(column.rows) < 2 or not any(c[-1][what] for c in curves):
        return ""
    least, most = max(c[0][what] for c in curves), max(c[-1][what] for c in curves)
    budgets = sorted({least, math.sqrt(least * most), most})
    rules = column.rules()[:2]
    rows = []
    for name in names(column):
        row = column.row(name)
        if row is not None:
            cells = [" / ".join(percent(within(row, what, b, rule)) for rule in rules) for b in budgets]
            spent = math.fsum(run["curve"][-1][what] for run in row.runs if run["curve"]) / len(row.runs)
            rows.append([titled(name), amount(spent / scale), *cells])
    headers = ["method", "in all", *(f"within {amount(b / scale)}" for b in budgets)]
    return f"Test accuracy ({' / '.join(rules)}) by {unit}:\n\n" + table(headers, rows)


def within(row: Row, what: str, budget: float, rule: str) -> float | None:
    """Mean over seeds of the test accuracy that validation chooses among the evaluations within the budget."""
    values = []
    for run in row.runs:
        points = [p for p in run["curve"] if p[what] <= budget * (1 + 1e-9) and rule in p["test"]]
        if not points:
            return None
        values.append(max(points, key=lambda p: p["val"][rule])["test"][rule])
    return math.fsum(values) / len(values)
