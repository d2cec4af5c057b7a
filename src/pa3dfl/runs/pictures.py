"""Pictures of runs and partitions, each as PNG and SVG, in colours for colour-blind people too."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import errors_name
from pa3dfl.core.options.names import TITLES
from pa3dfl.runs.run import Run, distinct
from pa3dfl.runs.tables import comparison

# Okabe and Ito's palette without its yellow, which is hard to see on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Each run also has a marker of its own, for prints without colour. After seven runs the dashes change.
STYLES = [(*pair, dash) for dash in ("-", "--", ":", "-.") for pair in zip(_COLOURS, "osD^vPX", strict=True)]
# Paul Tol's "muted" colours, for up to ten labels: Okabe and Ito's are eight.
_TOL = ("#332288", "#88CCEE", "#44AA99", "#117733", "#999933",
        "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB")  # fmt: skip
_INK = "#333333"


def learning_curve(runs: Sequence[Run], out: Path) -> Path:
    """Mean test accuracy against the round; a ring marks the round that validation chose."""
    curves = [[(r["round"], r["test_accuracy"]) for r in run.rounds if "test_accuracy" in r] for run in runs]
    fig, ax = _run_axes(runs)
    if not _plot(ax, list(map(_title, runs)), curves):
        raise UserError("no learning curve to draw: none of these runs has an evaluated round yet")
    ring: dict[str, Any] = {"s": 120, "facecolors": "none", "linewidths": 1.5, "zorder": 3}
    rings = []
    for i, (run, curve) in enumerate(zip(runs, curves, strict=True)):
        chosen: Any = run.summary.get("best_round")
        if (best := dict(curve).get(chosen)) is not None:
            rings.append(ax.scatter(chosen, 100 * best, edgecolors=_COLOURS[i % len(_COLOURS)], **ring))
    if rings:
        key = ax.scatter([], [], edgecolors=_INK, label="best validation round", **ring)
        # Above the axes, where there are no curves.
        place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 0.99), "borderpad": 0}
        ax.legend(handles=[key], frameon=False, fontsize=9, labelcolor=_INK, handletextpad=0.3, **place)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    ax.set_xlabel("round")
    return _save(fig, out)


def capacity_picture(runs: Sequence[Run], out: Path) -> Path | None:
    """Every client's test accuracy by its capacity, and means of levels or of fifths; None where all are equal."""
    records = comparison(runs)
    several = [run for run, record in zip(runs, records, strict=True) if record["by_capacity"]]
    fig, ax = _run_axes(several)
    for i, run in enumerate(runs):
        tested = [(100 * c["r"], 100 * c["test_accuracy"]) for c in run.clients if c["test_accuracy"] is not None]
        if run in several and tested:
            colour, marker, _ = STYLES[i % len(STYLES)]
            r, accuracy = zip(*tested, strict=True)
            ax.scatter(r, accuracy, s=14, color=colour, marker=marker, alpha=0.45, linewidths=0)
    means = [
        [(50 * (low + high), value) for (low, high), value in zip(r["capacities"], r["by_capacity"], strict=True)]
        for r in records
    ]
    if not _plot(ax, list(map(_title, runs)), means):
        return None
    levels = all(low == high for record in records for low, high in record["capacities"])
    parts = "levels" if levels else "fifths of the clients"
    ax.set_xlabel(f"client capacity r (% of the full model)\ndots: clients; lines: means of {parts}")
    ax.set_ylabel("test accuracy (%)")
    return _save(fig, out)


def newcomers_picture(records: Sequence[dict[str, Any]], out: Path) -> Path:
    """Mean test accuracy of newcomers against the rounds that they trained, from `arrivals.of_newcomers`.

    One panel for each rule of testing; dashed lines show the clients that were trained in.
    """
    rules, names = (list(dict.fromkeys(record[key] for record in records)) for key in ("rule", "name"))
    fig = Figure(figsize=(1.6 + 3.6 * len(rules) + 0.08 * max(map(len, names)), 4.0), layout="constrained")
    FigureCanvasAgg(fig)
    shown = [v for r in records for v in (r["trained_in"], *(a for _, a in r["after"])) if v is not None]
    low, high = 100 * min(shown, default=0.0), 100 * max(shown, default=1.0)
    for ax, rule in zip(fig.subplots(1, len(rules), sharey=True, squeeze=False)[0], rules, strict=True):
        _style(ax, f"newcomers, {rule}")
        ax.set_ylim(low - 2, high + 2)
        of_rule = {record["name"]: record for record in records if record["rule"] == rule}
        for i, name in enumerate(names):
            if name in of_rule and of_rule[name]["trained_in"] is not None:
                ax.axhline(100 * of_rule[name]["trained_in"], color=STYLES[i][0], linestyle=(0, (4, 4)), linewidth=1)
        curves = [of_rule[name]["after"] if name in of_rule else [] for name in names]
        _plot(ax, names, curves, labelled=rule == rules[-1])
        ax.set_xticks(sorted({k for record in of_rule.values() for k, _ in record["after"]}))
        ax.set_xlabel("rounds of the newcomer; dashed: trained in")
    fig.axes[0].set_ylabel("mean test accuracy (%)")
    return _save(fig, out)


def partition_picture(counts: np.ndarray, out: Path, title: str) -> Path:
    """One bar per client with a part for each label; `counts` (clients, labels) holds numbers of samples."""
    if counts.ndim != 2 or not counts.any():
        raise UserError(f"counts should be (clients, labels) and not all 0, but have shape {counts.shape}")
    clients, classes = counts.shape
    few = classes <= len(_TOL)
    colours = ListedColormap(_TOL[:classes]) if few else matplotlib.colormaps["viridis"].resampled(classes)
    norm = BoundaryNorm(np.arange(classes + 1) - 0.5, classes)

    # One collection of rectangles: `barh` takes half a minute for 400 clients and 100 labels.
    client, label = np.nonzero(counts)
    right = counts.cumsum(axis=1)[client, label]
    left = right - counts[client, label]
    half = 0.42 if clients <= 120 else 0.5
    corners = [(left, client - half), (right, client - half), (right, client + half), (left, client + half)]
    boxes = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
    bars = PolyCollection(list(boxes), cmap=colours, norm=norm, linewidths=0, antialiased=False)
    bars.set_array(label)
    bars.set_rasterized(True)  # an SVG of tens of thousands of shapes is slow to open

    fig, ax = _axes(6.4, float(np.clip(1.2 + 0.1 * clients, 2.6, 7.0)), title)
    ax.add_collection(bars)
    ax.set(xlim=(0, counts.sum(axis=1).max() * 1.02), ylim=(clients - 0.5, -0.5))
    ax.set(xlabel="samples", ylabel="client")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines["left"].set_visible(False)
    ax.grid(False)
    bar = fig.colorbar(ScalarMappable(norm, colours), ax=ax, label="label", aspect=30, pad=0.02)
    bar.set_ticks(range(0, classes, 1 if few else -(-classes // 5)))
    bar.ax.tick_params(which="both", length=0, labelsize=9, labelcolor=_INK)
    bar.ax.invert_yaxis()
    bar.outline.set_visible(False)
    return _save(fig, out)


def _plot(ax: Axes, names: Sequence[str], curves: Sequence[Sequence[tuple[Any, Any]]], labelled: bool = True) -> bool:
    """Draw fractions as percent, one line per run that has points; returns whether any had."""
    ends = []
    for i, (name, curve) in enumerate(zip(names, curves, strict=True)):
        points = [(x, 100 * y) for x, y in curve if y is not None]
        if points:
            colour, marker, dash = STYLES[i % len(STYLES)]
            (line,) = ax.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle=dash)
            line.set(linewidth=1.8, markersize=5 if len(points) <= 30 else 2)
            ends.append((*points[-1], name, colour))
    # The axis spans ten points at least, so that noise of one point does not look like a difference.
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, (low + high) / 2 - 5), max(high, (low + high) / 2 + 5))
    if labelled:
        _label_ends(ax, ends)
    return bool(ends)


def _label_ends(ax: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Write each line's name in the right margin, as close to the height of its end as the other names allow."""
    ends = sorted(ends, key=lambda end: end[1])
    low, high = ax.get_ylim()
    gap = min(0.06, 1 / max(len(ends), 1)) * (high - low)
    heights = [end[1] for end in ends]
    for i in range(1, len(ends)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    ceiling = high
    for i in reversed(range(len(ends))):
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - gap
    margin = ax.get_yaxis_transform()
    for (x, y, name, colour), height in zip(ends, heights, strict=True):
        # The leader starts at the middle of the name's left side, not where its box would clip it.
        leader = {
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.8,
            "relpos": (0, 0.5),
            "shrinkB": 4,
            "patchA": None,
        }
        text = ax.annotate(name, (x, y), (1.03, height), textcoords=margin, arrowprops=leader)
        text.set(color=_INK, fontsize=10, verticalalignment="center")


def _title(run: Run) -> str:
    """The run's name, with the method as texts call it."""
    method = str(run.summary.get("method"))
    known = run.name.startswith(method) and method in TITLES
    return TITLES[method] + run.name.removeprefix(method) if known else run.name


def _run_axes(runs: Sequence[Run]) -> tuple[Figure, Axes]:
    summaries = [run.summary for run in runs]
    title = " · ".join(filter(None, (", ".join(distinct(summaries, key)) for key in ("data", "setting"))))
    # Long names in the margin make the figure wider, not the curves narrower.
    fig, ax = _axes(5.6 + 0.08 * max((len(_title(run)) for run in runs), default=0), 4.0, title)
    ax.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    ax.set_ylabel("mean test accuracy (%)")
    return fig, ax


def _axes(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig, _style(fig.add_subplot(), title)


def _style(ax: Axes, title: str) -> Axes:
    ax.set_title(title, loc="left", fontsize=12, color=_INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#888888")
    ax.tick_params(colors=_INK, labelsize=10, length=3)
    ax.xaxis.label.set(color=_INK, fontsize=11)
    ax.yaxis.label.set(color=_INK, fontsize=11)
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    ax.set_axisbelow(True)
    return ax


def _save(fig: Figure, out: Path) -> Path:
    """Write both files. The dot in a name such as `lr0.1` does not start a suffix."""
    stem = out.with_suffix("") if out.suffix in {".png", ".svg"} else out
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = (stem.with_name(stem.name + suffix) for suffix in (".png", ".svg"))
    with errors_name(png):
        fig.savefig(png, dpi=200)
    # No date and no random ids: the same runs give the same file, without differences in git.
    with errors_name(svg), matplotlib.rc_context({"svg.hashsalt": "pa3dfl"}):
        fig.savefig(svg, metadata={"Date": None}, dpi=200)
    return png
