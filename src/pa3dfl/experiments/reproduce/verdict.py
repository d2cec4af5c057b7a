"""A summary of the results by rule of testing: a few sentences, then a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from pa3dfl.experiments.reproduce import paper
from pa3dfl.experiments.reproduce.groups import Column, titled
from pa3dfl.experiments.reproduce.markdown import EMPTY, listed, percent, signed, table
from pa3dfl.experiments.reproduce.significance import difference

PARTS = {
    "pa3dfl-flanc": ("With FLANC's decomposition in place of its own", "its own is no advantage here"),
    "pa3dfl-without-hn": ("Without the hyper-network", "it is no advantage here"),
}
"""What an ablation changes, and what it means if Pa3dFL is never worse with it."""

Found = list[tuple[float, str]]

TERMS = (
    "Differences are between the same clients in the same seeds; two methods are level where a sign-flip test over "
    "clients has p > 0.05. Accuracies are percent."
)


@dataclass(frozen=True)
class Standing:
    """Pa3dFL in a column by one rule: the methods that are better, as good and worse."""

    column: Column
    rule: str
    own: float
    better: Found
    level: Found
    worse: Found
    missing: list[str]

    @property
    def leads(self) -> bool:
        return not self.better and not self.level


def opening(columns: Sequence[Column]) -> str:
    """A list with a sentence for each rule and each part of Pa3dFL, then a table of the leading methods."""
    chosen = compared(columns)
    rules = list(dict.fromkeys(rule for c in chosen for rule in c.rules()))
    stands = [s for rule in rules for c in chosen if (s := standing(c, rule))]
    if not stands:
        return (
            "There is no result yet in which Pa3dFL can be compared with another method on equal terms: "
            "run `pa3dfl reproduce overall`."
        )
    by_rule = [[s for s in stands if s.rule == rule] for rule in rules]
    sentences = [_told(own) for own in by_rule if own]
    sentences += [text for part in PARTS if (text := _part(chosen, rules[0], part))]
    sentences += [_to_the_end(c, rules[0]) for c in columns if c not in chosen and c.rounds == paper.rounds(c.data)]
    points = "\n".join(f"- {text}" for text in sentences)
    return "\n\n".join([f"What {extent(chosen)} show:", points, _table(stands), TERMS])


def compared(columns: Sequence[Column]) -> list[Column]:
    """Columns with Pa3dFL and another method; of several lengths that with the most methods, or else the longest."""
    chosen: dict[tuple[str, str, str], Column] = {}
    for c in columns:  # the longest first
        key = (c.data, c.setting, c.model)
        if any(standing(c, rule) for rule in c.rules()) and (key not in chosen or _methods(c) > _methods(chosen[key])):
            chosen[key] = c
    return list(chosen.values())


def _methods(column: Column) -> int:
    return sum(row.name in paper.order() for row in column.rows)


def standing(column: Column, rule: str) -> Standing | None:
    own = column.row("pa3dfl")
    mean = own.rule(rule) if own else None
    if own is None or mean is None:
        return None
    places: dict[int, Found] = {-1: [], 0: [], 1: []}
    missing = []
    for name in (n for n in paper.order() if n != "pa3dfl"):
        row = column.row(name)
        d = difference(own, row, rule) if row else None
        if row is None or d is None:
            missing.append(name)
        else:
            places[d.verdict].append((row.rule(rule) or 0.0, name))
    if not any(places.values()):
        return None
    better, level, worse = (sorted(places[v], reverse=True) for v in (-1, 0, 1))
    return Standing(column, rule, mean, better, level, worse, missing)


def _told(stands: Sequence[Standing]) -> str:
    """One sentence for a rule: where Pa3dFL leads, where another is as good, where another is better."""
    groups = {
        "leads": [s for s in stands if s.leads],
        "is level with the best": [s for s in stands if s.level and not s.better],
        "is behind": [s for s in stands if s.better],
    }
    parts = [f"{words} on {listed([_named(s) for s in own])}" for words, own in groups.items() if own]
    return f"Tested as *{stands[0].rule}*, Pa3dFL {listed(parts)}."


def _named(s: Standing) -> str:
    """The column; with the most accurate method, if that is another one than Pa3dFL."""
    others = s.better or s.level
    if not others:
        return short(s.column)
    value, name = others[0]
    return f"{short(s.column)} ({titled(name)} {percent(value)}%, Pa3dFL {percent(s.own)}%)"


def short(column: Column) -> str:
    return column.title.partition(",")[0]


def _part(columns: Sequence[Column], rule: str, part: str) -> str:
    """One sentence: how Pa3dFL changes by this rule when one of its parts is replaced."""
    groups: dict[int, list[str]] = {-1: [], 0: [], 1: []}
    for column in columns:
        own, other = column.row("pa3dfl"), column.row(part)
        if own and other and (d := difference(own, other, rule)):
            change = f"{signed(-100 * d.mean)} ± {100 * d.error:.1f}"
            groups[d.verdict].append(f"{short(column)} ({change})")
    told = {-1: "better", 0: "as good", 1: "worse"}
    found = [f"{told[v]} on {listed(names)}" for v, names in groups.items() if names]
    means = "" if groups[1] else f": {PARTS[part][1]}"
    return f"{PARTS[part][0]}, Pa3dFL tested as *{rule}* is {listed(found)}{means}." if found else ""


def _to_the_end(column: Column, rule: str) -> str:
    """One sentence: the values of the paper's own number of rounds, beside the paper's."""
    values = []
    means = [(mean, row.name) for row in column.rows if (mean := row.rule(rule)) is not None]
    for mean, name in sorted(means, reverse=True):
        printed = paper.accuracy(column.data, column.setting, name, column.model)
        told = f" (in the paper {printed[0]:.1f}%)" if printed else ""
        values.append(f"{titled(name)} has {percent(mean)}%{told}")
    return f"Run as long as in the paper and tested as *{rule}* on {short(column)}, {listed(values)}."


def extent(columns: Sequence[Column]) -> str:
    """The seeds and lengths of the runs."""
    seeds = sorted({len(row.runs) for c in columns for row in c.rows})
    each = f"{seeds[0]} seed" if seeds == [1] else "–".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))) + " seeds"
    cut = any(c.rounds is not None and c.rounds < paper.full(c.data) for c in columns)
    return f"runs with {each}" + (", shorter than the paper's," if cut else "")


def _table(stands: Sequence[Standing]) -> str:
    rows = []
    for s in stands:
        own = f"{percent(s.own)}, leads" if s.leads else percent(s.own)
        worse = f"{len(s.worse)}, first {_values(s.worse[:1])}" if s.worse else EMPTY
        rest = listed([titled(n) for n in s.missing]) or "none"
        rows.append([short(s.column), s.rule, own, _values(s.better), _values(s.level), worse, rest])
    return table(["column", "tested as", "Pa3dFL", "better", "level with it", "worse", "not run"], rows, "---")


def _values(found: Found) -> str:
    return ", ".join(f"{titled(name)} {percent(value)}" for value, name in found) or EMPTY
