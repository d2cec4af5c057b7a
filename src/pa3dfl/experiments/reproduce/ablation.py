"""The section on ablations: the contribution of each part of Pa3dFL."""

from pa3dfl import methods
from pa3dfl.experiments.reproduce import paper
from pa3dfl.experiments.reproduce.groups import Column, titled
from pa3dfl.experiments.reproduce.markdown import EMPTY, percent, signed, table
from pa3dfl.experiments.reproduce.significance import Difference, difference


def section(column: Column) -> str:
    """Pa3dFL and its ablations; the difference is to Pa3dFL, by client and by seed."""
    rules = column.rules()[:2]
    same_model = column.model == paper.numbers()["models"].get(column.data)
    printed = paper.numbers()["ablation"].get(column.data, {}) if same_model and column.setting == "hetero" else {}
    whole = column.row("pa3dfl")
    headers = ["", "paper", "paper's difference"]
    for rule in rules:
        headers += [rule, "difference", "p over clients", "seeds with this sign"]
    rows = []
    for name in ("pa3dfl", *methods.registry(methods.ABLATIONS)):
        value, row = printed.get(name), column.row(name)
        loss = None if value is None or name == "pa3dfl" else value - printed["pa3dfl"]
        cells = [titled(name), EMPTY if value is None else f"{value:.2f}", signed(loss)]
        for rule in rules:
            own = percent(row.rule(rule), row.deviation(rule)) if row else EMPTY
            d = difference(row, whole, rule) if row and whole and name != "pa3dfl" else None
            cells += [own, *_told(d)]
        rows.append(cells)
    return f"### {column.title}\n\n" + table(headers, rows)


def _told(d: Difference | None) -> list[str]:
    if d is None:
        return [EMPTY] * 3
    alike = sum(s * d.mean > 0 for s in d.seeds)
    p = "< 0.001" if d.p < 0.001 else f"{d.p:.3f}"
    return [f"{signed(100 * d.mean)} ± {100 * d.error:.1f}", p, f"{alike} of {len(d.seeds)}"]
