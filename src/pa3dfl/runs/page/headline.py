"""The result in sentences."""

import math
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np

from pa3dfl.core.progress import duration
from pa3dfl.core.words import counted
from pa3dfl.runs.page.terms import TUNED, uneven
from pa3dfl.runs.rundata import RunData

Seeds = dict[Any, dict[int, dict[str, Any]]]
"""By seed and client: the client's row."""


def headline(runs: Sequence[RunData], shown: Sequence[dict[str, Any]]) -> list[str]:
    """A few sentences: the best method and its lead, the clients with the lowest accuracy, the cost."""
    methods: dict[str, Seeds] = {}
    for run, of_run in zip(runs, shown, strict=True):
        if rows := {r["client"]: r for r in run.client_rows if r.get("test_accuracy") is not None}:
            methods.setdefault(of_run["method"], {})[of_run["seed"]] = rows
    if not methods:
        return ["No client has been tested yet: the first numbers come with the first evaluation."]
    ranked = sorted(methods, key=lambda m: -overall(methods[m]))
    best = ranked[0]
    own = [(run, of_run) for run, of_run in zip(runs, shown, strict=True) if of_run["method"] == best]
    said = [lead(best, ranked, methods), worst_fifth(best, methods[best]), spent(best, own)]
    if len(ranked) > 1 and (keys := [k.replace("_", " ") for k in uneven(runs) if k != TUNED]):
        said.append(f"Not on equal terms: the runs differ in {', '.join(keys)}; see the foot of the page.")
    if unfinished := [r for r in shown if not r["finished"]]:
        names = ", ".join(f"{short(r['method'])} (round {r['rounds']} of {r['planned']})" for r in unfinished[:5])
        said.append(f"Not finished: {names}{' and others' if len(unfinished) > 5 else ''}.")
    return [text for text in said if text]


def overall(seeds: Seeds) -> float:
    return float(np.mean([np.mean([r["test_accuracy"] for r in rows.values()]) for rows in seeds.values()]))


def lead(best: str, ranked: list[str], methods: dict[str, Seeds]) -> str:
    seeds = methods[best]
    text = f"{short(best)} has a mean test accuracy of {percent(overall(seeds))}"
    if len(ranked) == 1:
        accuracies = [r["test_accuracy"] for rows in seeds.values() for r in rows.values()]
        return f"{text}{interval(accuracies)} over {of_clients(seeds)}."
    second = ranked[1]
    others = methods[second]
    common = {s: [i for i in rows if i in others[s]] for s, rows in seeds.items() if s in others}
    gains = [seeds[s][i]["test_accuracy"] - others[s][i]["test_accuracy"] for s, ids in common.items() for i in ids]
    text += f", the best of {len(ranked)} methods"
    if not gains:
        return f"{text}; {short(second)} follows with {percent(overall(others))}."
    points = 100 * float(np.mean(gains))
    both = " that both have" if len(common) < max(len(seeds), len(others)) else ""
    over = f" over {of_clients(common, both)}"
    if abs(points) < 0.05:
        return f"{text}, level with {short(second)}{over}."
    if points < 0:  # it leads only with what the other lacks
        return f"{text}; {short(second)} is {-points:.1f} points ahead{interval([-g for g in gains], ' points')}{over}."
    sure = "" if len(gains) < 2 or bounds(gains)[0] > 0 else "; the interval includes 0, so this may be chance"
    return f"{text}: {points:.1f} points ahead of {short(second)}{interval(gains, ' points')}{over}{sure}."


def bounds(values: Sequence[float]) -> tuple[float, float]:
    mean, half = float(np.mean(values)), 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def interval(values: Sequence[float], unit: str = "%") -> str:
    if len(values) < 2:
        return ""
    low, high = bounds(values)
    return f" (95% interval {100 * low:.1f} to {100 * high:.1f}{unit})"


def worst_fifth(best: str, seeds: Seeds) -> str:
    rows = [r for each in seeds.values() for r in each.values()]
    if len(rows) < 5:
        return ""
    levels = sorted({r["r"] for r in rows})
    if len(levels) == 1:
        lowest = sorted(r["test_accuracy"] for r in rows)[: len(rows) // 5]
        return f"The fifth of its clients with the lowest accuracy has a mean of {percent(float(np.mean(lowest)))}."
    if len(levels) <= 5:
        groups = {f"those with capacity {100 * level:.3g}%": [r for r in rows if r["r"] == level] for level in levels}
    else:
        ranked = sorted(rows, key=lambda r: (r["r"], r["client"]))
        fifths = [[ranked[i] for i in part] for part in np.array_split(np.arange(len(ranked)), 5)]
        groups = {f"the fifth with capacity {percent(f[0]['r'], 0)} to {percent(f[-1]['r'], 0)}": f for f in fifths}
    means = {which: float(np.mean([r["test_accuracy"] for r in group])) for which, group in groups.items()}
    worst = min(means, key=lambda which: means[which])
    return f"Of its clients it serves {worst} worst: {percent(means[worst])}."


def spent(best: str, own: Sequence[tuple[RunData, dict[str, Any]]]) -> str:
    curves = [of_run["curve"] for _, of_run in own if of_run["curve"]["round"]]
    if not curves:
        return ""
    sent, seconds = (float(np.mean([c[k][-1] for c in curves])) for k in ("bytes", "seconds"))
    parts = [f"{scale(sent, 'B')} sent both ways"]
    if all(c["operations"][-1] is not None for c in curves):
        parts.append(f"{scale(np.mean([c['operations'][-1] for c in curves]), '')} forward multiply-adds of training")
    parts.append(duration(seconds))
    return f"A run of it cost {', '.join(parts[:-1])} and {parts[-1]}."


def short(name: str) -> str:
    return name if len(name) <= 60 else name[:57] + "…"


def of_clients(seeds: Mapping[Any, Sized], both: str = "") -> str:
    """How many clients, and seeds where there are several; `both`: they are not all."""
    clients = counted(max(map(len, seeds.values())), "client")
    if len(seeds) > 1:
        return f"{clients} and {len(seeds)} seeds{both}"
    return f"{clients} of the one seed{both}" if both else clients


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"


def scale(value: float, unit: str) -> str:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".strip()
