"""The runs of a plan: cells of data × setting × method × seed, the most informative first.

The order: the first seed before further seeds; within a seed the Hetero columns before Ideal. Within a column: Pa3dFL
and its strongest competitors, the other methods, the ablations, then Pa3dFL with other options (for the figures).
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config, identity
from pa3dfl.experiments.reproduce import paper
from pa3dfl.methods import assembly

RIVALS = ("pa3dfl", "fedavg", "ditto", "fjord", "tailorfl")
"""Pa3dFL, the simplest baseline, and the best of the paper's Hetero columns."""

SWEEPS = {"lam": ("0.1", "0.01", "0.001"), "depth": ("1", "2", "3", "4")}
"""Options of Pa3dFL that the paper draws accuracy against."""

# The bundled images are few: the federation of `compare --quick`.
SMALL = {"fashion-mnist-10k": {"clients": 40, "per_round": 8, "epochs": 2}}

# Options that decide where and how fast a run computes, not what.
_ELSEWHERE = ("out", "data_dir", "checkpoint_every", "timeout", "engine", "device", "threads", "track")


@dataclass(frozen=True)
class Cell:
    data: str
    setting: str
    method: str
    seed: int
    options: tuple[tuple[str, str], ...] = ()

    @property
    def row(self) -> str:
        """The method, and those of its options that the plan sets."""
        return row(self.method, dict(self.options))

    def __str__(self) -> str:
        return f"{Path(self.data).stem} {self.setting} {self.row} seed {self.seed}"


def row(method: str, options: Mapping[str, Any]) -> str:
    return "@".join([method, *(f"{k}={v}" for k, v in options.items())])


def parse(word: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A method, possibly with options: `pfedgate@keep_head=true`."""
    name, *pairs = word.split("@")
    cls = methods.find(name)
    options = []
    for pair in pairs:
        option, equals, value = pair.partition("=")
        option = option.replace("-", "_")
        if not equals or option not in assembly.option_fields(cls):
            known = ", ".join(assembly.option_fields(cls)) or "it has no options"
            raise UserError(f"method {word!r}: {pair!r} is not an option=value of {name}: expected one of {known}")
        options.append((option, value))
    return name, tuple(options)


def plan(
    parts: Sequence[str], data: Sequence[str], settings: Sequence[str], words: Sequence[str] | None,
    seeds: Sequence[int],
) -> list[Cell]:  # fmt: skip
    """The cells of these parts; `words` are methods, by default all that a part needs."""
    asked = None if words is None else [parse(word) for word in words]
    cells: dict[Cell, int] = {}
    for seed in seeds:
        for setting in settings:
            for stage, (name, options) in _rows(parts, setting, asked):
                for each in data:
                    cells.setdefault(Cell(each, setting, name, seed, options), stage)
    later, ideal = {s: s != seeds[0] for s in seeds}, {s: s == "ideal" for s in settings}
    return sorted(cells, key=lambda c: (later[c.seed], ideal[c.setting], cells[c]))


Row = tuple[str, tuple[tuple[str, str], ...]]


def _rows(parts: Sequence[str], setting: str, asked: list[Row] | None) -> list[tuple[int, Row]]:
    """Methods with their place in the order."""
    chosen: list[Row] = []
    if asked is not None:
        chosen += asked if {"overall", "ablation"} & set(parts) else []
    else:
        if "overall" in parts:
            chosen += [(name, ()) for name in methods.registry()]
        if "ablation" in parts and setting != "ideal":  # the paper's are of Hetero
            chosen += [(name, ()) for name in ("pa3dfl", *methods.registry(methods.ABLATIONS))]
    if "figures" in parts and (asked is None or ("pa3dfl", ()) in asked):
        tried = SWEEPS if setting != "ideal" else {"lam": SWEEPS["lam"]}
        chosen += [("pa3dfl", ((option, v),)) for option, values in tried.items() for v in values]
    ablations = methods.registry(methods.ABLATIONS)

    def stage(item: Row) -> int:
        name, options = item
        if options and name == "pa3dfl":
            return len(RIVALS) + 2
        if name in ablations:
            return len(RIVALS) + 1
        return RIVALS.index(name) if name in RIVALS else len(RIVALS)

    return [(stage(item), item) for item in dict.fromkeys(chosen)]


def config_of(cell: Cell, given: Mapping[str, Any], part: Fraction | int) -> Config:
    """The config of a cell: the paper's federation, a share of its rounds, and the options that were given."""
    rounds = part if isinstance(part, int) else math.ceil(paper.full(cell.data) * part)
    # Where training ends early, the paper's patience, a fifth of all its rounds, is never used up.
    short = {} if rounds >= paper.full(cell.data) else {"patience": 1.0}
    values = {
        "eval_every": min(10, rounds), **short, **SMALL.get(cell.data, {}), **given,
        **dict(cell.options), "data": cell.data, "setting": cell.setting, "method": cell.method, "seed": cell.seed,
        "rounds": rounds,
    }  # fmt: skip
    return assembly.configure(values)


def key(config: Config) -> str:
    """Equal for runs that should give the same result, on any machine."""
    values = {k: v for k, v in identity(config).items() if k not in _ELSEWHERE}
    values["precision"] = "fp32" if config.precision == "tf32" else config.precision
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:10]


def slug(config: Config) -> str:
    """The name of a cell's files."""
    words = (Path(config.data).stem, config.setting, config.method, str(config.seed), key(config))
    return "-".join("".join(c if c.isalnum() else "-" for c in word[:40]) for word in words)
