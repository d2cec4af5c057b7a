"""Pictures of the page: panels of lines in colour-blind-safe colours, one legend for all."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from pa3dfl.core.files import errors_name
from pa3dfl.runs.pictures import STYLES

Line = Sequence[tuple[float, float]]


def panels(rows: int, columns: int, size: tuple[float, float] = (4.2, 3.2)) -> tuple[Figure, list[Axes]]:
    """A figure with its axes, row by row."""
    fig = Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
    FigureCanvasAgg(fig)
    grid = fig.subplots(rows, columns, squeeze=False)
    for ax in grid.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color="#E6E6E6", linewidth=0.8)
        ax.set_axisbelow(True)
    return fig, list(grid.flat)


def plot(ax: Axes, lines: Mapping[str, Line], names: Sequence[str]) -> None:
    """Draws each line in the style of its name, the same in all panels."""
    for name, points in lines.items():
        colour, marker, dash = STYLES[names.index(name) % len(STYLES)]
        if points:
            (line,) = ax.plot(*zip(*points, strict=True), label=name, color=colour, marker=marker, linestyle=dash)
            line.set(markersize=3.5, linewidth=2.6 if name == "Pa3dFL" else 1.5)


def logarithmic(ax: Axes) -> None:
    """A logarithmic x axis, if the points span a power of ten: on a shorter range its labels overlap."""
    places = [x for line in ax.lines for x in np.asarray(line.get_xdata(), dtype=float).tolist() if x > 0]
    if places and max(places) >= 10 * min(places):
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())


def legend(fig: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels."""
    handles = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if handles:
        fig.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=min(5, len(handles)), frameon=False,
            fontsize=9,
        )  # fmt: skip


def save(fig: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with errors_name(path):
        fig.savefig(path, dpi=110, metadata={"Software": None})
    return path
