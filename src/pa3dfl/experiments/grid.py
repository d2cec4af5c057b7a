"""Tuning grids: the paper's or a user's, as points of option: value."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import yaml

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import HOW, Config
from pa3dfl.core.options.schema import coerce, suggest
from pa3dfl.core.randomness import numpy_generator
from pa3dfl.core.words import counted

Point = dict[str, Any]
Fields = Mapping[str, dataclasses.Field[Any]]
Grid = dict[tuple[str, ...], list[str]]
"""Values by option; several options together take values joined by +."""


def paper_grid(method: str, fixed: Sequence[str]) -> Grid:
    """The paper's grid for a method, without the options that are given."""
    grids = yaml.safe_load((resources.files("pa3dfl.core.options") / "presets" / "grids.yaml").read_text())
    grid = {
        tuple(k.split("+")): [str(v) for v in values] for k, values in (grids["all"] | grids.get(method, {})).items()
    }
    return {names: values for names, values in grid.items() if not set(names) & set(fixed)}


def parse(words: Sequence[str]) -> Grid:
    """`lr=0.01,0.1` or, for values that go together, `embedding+hidden=64+64,16+128`."""
    grid: Grid = {}
    for word in words:
        left, equals, right = word.partition("=")
        names, values = tuple(left.replace("-", "_").split("+")), right.split(",")
        if not equals or not all(names) or not all(v.strip() for v in values):
            raise UserError(f"grid {word!r} has no values: expected option=value,value,… such as lr=0.01,0.1")
        for name in names:
            if [*itertools.chain(*grid), *names].count(name) > 1:
                raise UserError(f"grid {word!r}: {name} is given twice; give all its values at once")
        grid[names] = values
    return grid


def tunable(options: Fields) -> Fields:
    """A method's own options, and those of local training. Options that change the task cannot be tuned."""
    return {f.name: f for f in dataclasses.fields(Config) if f.metadata.get("group") == HOW} | dict(options)


def check_names(grid: Grid, known: Sequence[str], fixed: Sequence[str]) -> None:
    for name in itertools.chain(*grid):
        if name not in known:
            hint = suggest(name, known, f"expected one of {', '.join(known)}")
            raise UserError(f"grid option {name!r} cannot be tuned: {hint}")
        if name in fixed:
            raise UserError(f"{name} is given and in the grid: leave one of them out")


def points(grid: Grid, fields: Fields) -> list[Point]:
    """All combinations of the values of these fields; the last option changes fastest."""
    axes = [_axis(names, values, fields) for names, values in grid.items() if set(names) <= fields.keys()]
    return [dict(itertools.chain(*parts)) for parts in itertools.product(*axes)]


def sample(method: str, choices: list[Point], n: int | None, seed: int) -> list[Point]:
    """`n` of the choices, in grid order; all of them if n is None.

    A grid of fewer points is filled up with further step sizes, evenly spaced on a logarithmic scale between its
    smallest and its largest, each at a point drawn from the grid: every method then has the same number of trials.
    """
    if n is None:
        return choices
    draw, more = numpy_generator(seed, "trials"), n - len(choices)
    if more <= 0:
        return [choices[i] for i in sorted(draw.choice(len(choices), n, replace=False))]
    rates = sorted({p["lr"] for p in choices if "lr" in p})
    if len(rates) < 2:
        raise UserError(
            f"trials is {n}: the grid of {method} has {counted(len(choices), 'setting')} and no range of lr to draw "
            f"more from; give it more values with --grid, or ask for at most {len(choices)}"
        )
    steps = [rates[0] * (rates[-1] / rates[0]) ** ((i + 0.5) / more) for i in range(more)]
    others = [choices[i] for i in draw.integers(len(choices), size=more)]
    return choices + [p | {"lr": float(f"{lr:.4g}")} for p, lr in zip(others, steps, strict=True)]


def _axis(names: tuple[str, ...], values: list[str], fields: Fields) -> list[list[tuple[str, Any]]]:
    axis = []
    for value in values:
        parts = value.split("+") if len(names) > 1 else [value]
        if len(parts) != len(names):
            raise UserError(f"grid {'+'.join(names)}: {value!r} should hold {len(names)} values joined by +")
        axis.append([(k, coerce(k, v.strip(), fields[k].type)) for k, v in zip(names, parts, strict=True)])
        if axis.count(axis[-1]) > 1:
            raise UserError(f"grid {'+'.join(names)}: {value} is given twice")
    return axis
