"""The first paragraph of the page: what the results there are say, by rule."""

from collections.abc import Sequence

from pa3dfl.experiments.reproduce import paper
from pa3dfl.experiments.reproduce.groups import Column, titled
from pa3dfl.experiments.reproduce.markdown import listed
from pa3dfl.experiments.reproduce.significance import difference

Found = list[tuple[float, str]]


def paragraph(columns: Sequence[Column]) -> str:
    told = [text for column in columns if (text := of_column(column))]
    if not told:
        return (
            "There is no result yet in which Pa3dFL can be compared with another method on equal terms: "
            "run `pa3dfl reproduce overall`."
        )
    return (
        "Differences are between the same clients in the same seeds; methods are level where a sign-flip test over "
        "clients has p > 0.05. " + " ".join(told)
    )


def of_column(column: Column) -> str:
    """Where Pa3dFL stands among the methods that were run, by rule, and what its decomposition is worth."""
    sentences = [text for rule in column.rules() if (text := _standing(column, rule))]
    sentences += [text for rule in column.rules()[:1] if (text := _decomposition(column, rule))]
    return f"**{column.title}**: {' '.join(sentences)}" if sentences else ""


def _standing(column: Column, rule: str) -> str:
    own = column.row("pa3dfl")
    if own is None or own.rule(rule) is None:
        return ""
    better: Found = []
    level: Found = []
    worse: Found = []
    for name in (n for n in paper.order() if n != "pa3dfl"):
        row = column.row(name)
        d = difference(own, row, rule) if row else None
        if row is not None and d is not None:
            where = {1: worse, 0: level, -1: better}[d.verdict]
            where.append((row.rule(rule) or 0.0, name))
    if not better + level + worse:
        return ""
    mean = 100 * (own.rule(rule) or 0.0)
    start = f"tested as {rule}, Pa3dFL has {mean:.1f}%"
    others = len(better) + len(level) + len(worse)
    if better or level:
        parts = [f"{_names(better)} {_is(better)} better"] if better else []
        parts += [f"{_names(level)} {_is(level)} level with it"] if level else []
        rest = f", {len(worse)} of {others} are worse" if worse else ""
        return f"{start}; {listed(parts)}{rest}."
    first, name = max(worse)
    count = "the only other method run" if others == 1 else f"all {others} others run"
    return f"{start} and leads {count}; next is {titled(name)} with {100 * first:.1f}%."


def _decomposition(column: Column, rule: str) -> str:
    own, other = column.row("pa3dfl"), column.row("pa3dfl-flanc")
    d = difference(own, other, rule) if own and other else None
    if d is None:
        return ""
    change = f"{-100 * d.mean:+.1f} ± {100 * d.error:.1f} points, {rule}"
    means = {1: "worse", 0: "as good", -1: "better"}[d.verdict]
    return f"With FLANC's decomposition inside it Pa3dFL is {means} ({change})."


def _names(found: Found) -> str:
    return listed([f"{titled(name)} ({100 * value:.1f}%)" for value, name in sorted(found, reverse=True)])


def _is(found: Found) -> str:
    return "is" if len(found) == 1 else "are"
