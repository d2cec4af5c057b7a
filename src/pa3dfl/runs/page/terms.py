"""On which terms runs were made: a name for each method and each set of its options, and what is equal or differs."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config
from pa3dfl.core.options.names import TITLES
from pa3dfl.runs.rundata import RunData

# Options that are no terms: the method, the seed, and those on which the result does not depend.
APART = {
    "method", "seed", "preset", "engine", "device", "threads", "checkpoint_every", "timeout", "data_dir", "out",
    "track", "options",
}  # fmt: skip
DEFAULTS = {f.name: f.default for f in dataclasses.fields(Config) if f.name not in APART}
DATA = "data_fingerprint"
TUNED = "lr"
"""The one common option that presets choose for each method."""
NAMED = ("data", "setting", "tested")
"""Part of every name where they differ between any two runs."""


def titled(run: RunData) -> str:
    name = str(run.config.get("method"))
    return TITLES.get(name, name)


def options(run: RunData) -> dict[str, Any]:
    return {k: v for k, v in (DEFAULTS | run.config).items() if k not in APART}


def config_hash(values: Mapping[str, Any]) -> str | None:
    """The hash of a run's configuration; None for one that this version does not read."""
    fields = {f.name for f in dataclasses.fields(Config)} - {"options"}
    own = {k: v for k, v in values.items() if k in fields}
    try:
        return Config(**own, options={k: v for k, v in values.items() if k not in fields and k != DATA}).hash()
    except UserError:
        return None


def differing(all_options: Sequence[dict[str, Any]]) -> list[str]:
    """The options with several values. An option of a method that a run does not have is no value."""
    keys = dict.fromkeys(k for each in all_options for k in each)
    values = {k: {str(o.get(k)) for o in all_options if k in DEFAULTS or o.get(k) is not None} for k in keys}
    return [k for k in keys if len(values[k]) > 1]


def names(runs: Sequence[RunData]) -> list[str]:
    """Equal for runs that differ in their seed only: the method, and those of its options that tell it from others."""
    given = [options(run) for run in runs]
    shown = [k for k in differing(given) if k in NAMED]
    alike = [(titled(run), *(str(own[k]) for k in NAMED)) for run, own in zip(runs, given, strict=True)]
    found, seen = [], Counter[tuple[str, Any]]()
    for run, own, kind in zip(runs, given, alike, strict=True):
        keys = shown + differing([o for o, other in zip(given, alike, strict=True) if other == kind])
        name = ", ".join([titled(run), *(words(k, own[k]) for k in keys if own.get(k) is not None)])
        seen[name, run.config.get("seed")] += 1
        again = seen[name, run.config.get("seed")]
        found.append(name if again == 1 else f"{name}, repetition {again}")
    return found


def words(key: str, value: Any) -> str:
    return str(value) if key in ("data", "setting") else f"{key.replace('_', ' ')} {value}"


def uneven(runs: Sequence[RunData]) -> list[str]:
    """The common options that differ between runs."""
    return [k for k in differing([options(run) for run in runs]) if k in DEFAULTS or k == DATA]


def terms(runs: Sequence[RunData], named: Sequence[str]) -> list[str]:
    """Which common options are equal for all runs, and which runs have which values of the others."""
    if len(set(named)) < 2:
        return []
    different = uneven(runs)
    first = options(runs[0])
    same = [f"{k.replace('_', ' ')} {first[k]}" for k in DEFAULTS if k not in different and first[k] is not None]
    found = [f"Equal for all: {', '.join(same)}."]
    for key in different:
        by_value: dict[str, dict[str, None]] = {}
        for run, name in zip(runs, named, strict=True):
            value = options(run).get(key)
            by_value.setdefault("none" if value is None else str(value), {})[name] = None
        values = (f"{text} for {' and '.join(having)}" for text, having in by_value.items())
        found.append(f"Different {key.replace('_', ' ')}: {'; '.join(values)}.")
    return found
