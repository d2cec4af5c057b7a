"""Appendix A: the relative size of a decomposed operator against R2, p_min and its size, with the paper's bound."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from matplotlib.axes import Axes

from pa3dfl.experiments.reproduce.drawing import Line, panels, plot, save
from pa3dfl.methods.pa3dfl.decomposition import LayerPlan

P_MIN = Fraction(1, 16)


@dataclass(frozen=True)
class Operator:
    """A convolution of k × k taps, or for k = 1 a linear layer; R2 by the printed rule unless given."""

    outputs: int
    inputs: int
    k: int
    R2: int | None = None

    def plan(self, p_min: Fraction) -> LayerPlan:
        R1 = int(self.outputs * p_min)
        rule = R1 if self.k == 1 else max(min(self.inputs, self.outputs), self.k**2)
        kernel = () if self.k == 1 else (self.k, self.k)
        return LayerPlan("operator", self.outputs, self.inputs, kernel, R1, self.R2 or rule)

    def ratio(self, p: Fraction, p_min: Fraction) -> float:
        """Parameters at width p, over those of the plain operator at full width."""
        plan = self.plan(p_min)
        pruned = (int(p * self.outputs), int(p * self.inputs))
        held = math.prod(plan.u_shape) + math.prod(plan.v_shape(pruned))
        return held / (self.outputs * self.inputs * self.k**2)

    def bound(self, p: Fraction, p_min: Fraction) -> float | None:
        """p²/(k² p_min) + p_min; holds for the printed rule where min(S, T) ≥ k²."""
        if self.R2 is not None or self.k == 1 or min(self.inputs, self.outputs) < self.k**2:
            return None
        return float(p**2 / (self.k**2 * p_min) + p_min)


CONV, LINEAR = Operator(64, 64, 5), Operator(384, 1600, 1)


def widths(p_min: Fraction) -> list[Fraction]:
    return [i * p_min for i in range(1, int(1 / p_min) + 1)]


def picture(out: Path) -> Path:
    fig, axes = panels(2, 3, (4.0, 3.0))
    for ax, kind, base, many in ((axes[0], "convolution", CONV, (16, 32, 64, 128)),
                                 (axes[3], "linear", LINEAR, (12, 24, 48, 96))):  # fmt: skip
        cases = [(f"R2 = {r2}", Operator(base.outputs, base.inputs, base.k, r2), P_MIN) for r2 in many]
        _draw(ax, f"{kind}: R2", cases)
    for ax, kind, base in ((axes[1], "convolution", CONV), (axes[4], "linear", LINEAR)):
        _draw(ax, f"{kind}: p_min", [(f"p_min = 1/{n}", base, Fraction(1, n)) for n in (4, 8, 16, 32)])
    for ax, kind, sizes in ((axes[2], "convolution", [(32, 64, 5), (64, 64, 5), (64, 256, 3)]),
                            (axes[5], "linear", [(384, 1600, 1), (512, 3136, 1), (192, 384, 1)])):  # fmt: skip
        _draw(ax, f"{kind}: size", [(f"{s} → {t}" + f", k = {k}" * (k > 1), Operator(t, s, k), P_MIN)
                                    for t, s, k in sizes])  # fmt: skip
    fig.suptitle("Parameters at width p over those of the full plain operator")
    return save(fig, out)


def _draw(ax: Axes, title: str, cases: Sequence[tuple[str, Operator, Fraction]]) -> None:
    lines: dict[str, Line] = {
        name: [(float(p), operator.ratio(p, p_min)) for p in widths(p_min)] for name, operator, p_min in cases
    }
    plot(ax, lines, list(lines))
    for line, (_, operator, p_min) in zip(list(ax.lines), cases, strict=True):
        bound = [(float(p), b) for p in widths(p_min) if (b := operator.bound(p, p_min)) is not None]
        if bound:
            ax.plot(*zip(*bound, strict=True), color=line.get_color(), linewidth=1.4, linestyle=":")
    grid = [i / 32 for i in range(1, 33)]
    ax.plot(grid, [p * p for p in grid], color="#888888", linewidth=1, label="p²")
    ax.plot([], [], color="#888888", linewidth=1.4, linestyle=":", label="bound")
    ax.set(xlabel="width p", title=title, xscale="log", yscale="log")
    ax.legend(fontsize=7, frameon=False)
