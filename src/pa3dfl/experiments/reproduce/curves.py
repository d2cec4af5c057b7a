"""Pictures of runs: learning curves, accuracy by capacity, by an option, and the chosen α."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pa3dfl.experiments.reproduce.cells import SWEEPS
from pa3dfl.experiments.reproduce.drawing import Line, legend, logarithmic, panels, plot, save
from pa3dfl.experiments.reproduce.groups import Column, Row, titled

AXES = {"round": "round", "bytes": "bytes sent", "multiply_adds": "multiply-adds", "seconds": "seconds"}
LOGARITHMIC = ("bytes", "multiply_adds")
OWN = "pa3dfl"
"""Drawn first, so that it has the same colour in all pictures."""


def learning(column: Column, rule: str, out: Path) -> Path | None:
    """Mean test accuracy by round, by bytes sent, by multiply-adds and by time."""
    rows = _shown(column, rule)
    fig, axes = panels(2, 2)
    names = [titled(row.name) for row in rows]
    for ax, (what, label) in zip(axes, AXES.items(), strict=True):
        plot(ax, {titled(row.name): mean_curve(row, rule, what) for row in rows}, names)
        ax.set(xlabel=label, ylabel=f"test accuracy (%), {rule}")
        if what in LOGARITHMIC:
            logarithmic(ax)
    fig.suptitle(column.title)
    legend(fig, axes)
    return save(fig, out) if rows else None


def mean_curve(row: Row, rule: str, what: str) -> Line:
    """Means over seeds at the rounds that all of them tested; without points at 0 on logarithmic axes."""
    by_round = [{p["round"]: p for p in run["curve"] if rule in p["test"]} for run in row.runs]
    common = sorted(set.intersection(*map(set, by_round)))
    points = [
        (float(np.mean([c[r][what] for c in by_round])), 100 * float(np.mean([c[r]["test"][rule] for c in by_round])))
        for r in common
    ]
    return [p for p in points if p[0] > 0 or what not in LOGARITHMIC]


def capacity(column: Column, rule: str, out: Path) -> Path | None:
    """Mean test accuracy by level or fifth of the clients' capacity."""
    rows = [row for row in _shown(column, rule) if all(run["rules"][rule]["by_capacity"] for run in row.runs)]
    if not rows:
        return None
    groups = rows[0].runs[0]["rules"][rule]["by_capacity"]
    fig, [ax] = panels(1, 1, (8.4, 4.4))
    lines = {}
    for row in rows:
        each = [[g["accuracy"] for g in run["rules"][rule]["by_capacity"]] for run in row.runs]
        lines[titled(row.name)] = [(float(i), 100 * float(v)) for i, v in enumerate(np.mean(each, axis=0))]
    plot(ax, lines, list(lines))
    ax.set_xticks(range(len(groups)), [f"{'≤ ' if g['low'] < g['high'] else ''}{g['high']:.2g}" for g in groups])
    ax.set(xlabel="capacity r of the clients", ylabel=f"test accuracy (%), {rule}", title=column.title)
    legend(fig, [ax])
    return save(fig, out)


OPTIONS = {"lam": "λ", "depth": "layers of the hyper-network's encoder"}


def sweep(columns: list[Column], option: str, out: Path) -> Path | None:
    """Pa3dFL's accuracy against one of its options, a panel for each column with at least two values."""
    drawn = [(c, lines) for c in columns if (lines := swept(c, option)) and max(map(len, lines.values())) > 1]
    if not drawn:
        return None
    fig, axes = panels(1, len(drawn))
    names = list(dict.fromkeys(rule for _, lines in drawn for rule in lines))
    for ax, (column, lines) in zip(axes, drawn, strict=True):
        plot(ax, lines, names)
        ax.set(xlabel=OPTIONS[option], ylabel="test accuracy (%)", title=column.title)
        if option == "lam":
            logarithmic(ax)
        else:
            ax.set_xticks(sorted({x for line in lines.values() for x, _ in line}))
    legend(fig, axes)
    return save(fig, out)


def swept(column: Column, option: str) -> Mapping[str, Line]:
    """By rule: (value of the option, accuracy in percent); the defaults are the row of Pa3dFL itself."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in column.rows:
        name, _, rest = row.name.partition("@")
        if name == "pa3dfl" and (not rest or rest.split("=")[0] == option) and "@" not in rest:
            value = float(row.runs[0]["config"].get(option, math.nan))
            for rule in column.rules():
                accuracy = row.rule(rule)
                if accuracy is not None and not math.isnan(value):
                    lines.setdefault(rule, []).append((value, 100 * accuracy))
    return {rule: sorted(points) for rule, points in lines.items()}


def sweeps(columns: list[Column], folder: Path) -> list[Path]:
    return [path for option in SWEEPS if (path := sweep(columns, option, folder / f"{option}.png"))]


def alpha(column: Column, out: Path) -> Path | None:
    """The α that validation chose for each client of Pa3dFL, against the client's capacity."""
    row = column.row("pa3dfl")
    points = [
        (r, a)
        for run in (row.runs if row else ())
        for r, a in zip(run["clients"]["r"], run["clients"]["alpha"], strict=True)
        if a is not None
    ]
    if not points:
        return None
    fig, [ax] = panels(1, 1, (5.2, 3.6))
    ax.scatter([r for r, _ in points], [a for _, a in points], s=14, alpha=0.6, color="#0072B2")
    ax.set(xlabel="capacity r", ylabel="α: 0 received, 1 locally trained", title=column.title)
    return save(fig, out)


def _shown(column: Column, rule: str) -> list[Row]:
    """The rows of a picture: every method with that rule, Pa3dFL first, without its other options."""
    rows = [r for r in column.rows if not r.name.startswith(f"{OWN}@") and all(rule in x["rules"] for x in r.runs)]
    return sorted(rows, key=lambda r: r.name != OWN)
