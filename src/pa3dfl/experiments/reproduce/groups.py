"""Records in groups: a column holds the runs on equal terms, a row one method over its seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pa3dfl import methods
from pa3dfl.core.options import names
from pa3dfl.experiments.reproduce import paper
from pa3dfl.experiments.reproduce.paper import DATA, SETTINGS
from pa3dfl.experiments.reproduce.records import RULES, Record

# What runs of one column have in common. The step size and a method's own options are its preset's.
SHARED = ("clients", "per_round", "epochs", "batch", "preset", "init", "capacity_rule", "p_min", "partition")
TITLES = {
    "cifar10": "CIFAR10", "cifar100": "CIFAR100", "fashion-mnist": "Fashion-MNIST",
    "hapt": "HAPT", "shakespeare": "Shakespeare", "inst-eval": "InstEval",
    "fashion-mnist-10k": "Fashion-MNIST's 10,000 bundled images", "hetero": "Hetero", "ideal": "Ideal",
} | names.TITLES  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One method's runs, one for each seed."""

    name: str
    runs: tuple[Record, ...]

    def rule(self, rule: str, what: str = "test_accuracy") -> float | None:
        values = [r["rules"][rule][what] for r in self.runs if rule in r["rules"]]
        known = [v for v in values if v is not None]
        return math.fsum(known) / len(known) if known else None

    def deviation(self, rule: str) -> float | None:
        """Between seeds."""
        values = [r["rules"][rule]["test_accuracy"] for r in self.runs if rule in r["rules"]]
        return statistics.stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Column:
    """Runs on equal terms: one data set, model, setting and number of rounds."""

    data: str
    setting: str
    model: str
    rounds: int | None
    rows: tuple[Row, ...] = ()
    older: int = 0
    """Runs of the same cells with other options, which the latest ones replace."""

    @property
    def title(self) -> str:
        words = [titled(Path(self.data).stem), titled(self.setting)]
        if self.model != paper.numbers()["models"].get(self.data, self.model):
            words.append(f"with {self.model}")
        length = "" if self.rounds is None else f", {self.rounds} {paper.of_rounds(self.data)}"
        return " ".join(words) + length

    def row(self, name: str) -> Row | None:
        return next((r for r in self.rows if r.name == name), None)

    def rules(self) -> list[str]:
        """Rules of testing that any run has, in a fixed order."""
        found = {rule for row in self.rows for run in row.runs for rule in run["rules"]}
        return [rule for rule in RULES if rule in found] + sorted(found.difference(RULES))


def titled(word: str) -> str:
    """The printed name of a method, with its options after the @ in brackets."""
    name, at, options = word.partition("@")
    return TITLES.get(name, name) + (f" ({options.replace('@', ', ')})" if at else "")


def columns(records: Sequence[Record]) -> list[Column]:
    """All columns that have runs: the paper's first, Hetero before Ideal, the longest runs before shorter ones."""
    by_terms: dict[tuple[Any, ...], list[Record]] = {}
    for r in records:
        terms = [r["data"], r["setting"], r["model"], r["planned_rounds"], *(r["config"].get(k) for k in SHARED)]
        by_terms.setdefault(tuple(map(str, terms)), []).append(r)
    found = [_column(own) for own in by_terms.values()]
    return sorted(found, key=_place)


def with_empty(found: Sequence[Column]) -> list[Column]:
    """The same, and the paper's columns of which there is no run yet."""
    run = {(c.data, c.setting) for c in found}
    missing = [Column(d, s, paper.numbers()["models"][d], None) for d in DATA for s in SETTINGS if (d, s) not in run]
    return sorted([*found, *missing], key=_place)


def _place(column: Column) -> tuple[Any, ...]:
    data = DATA.index(column.data) if column.data in DATA else len(DATA)
    setting = SETTINGS.index(column.setting) if column.setting in SETTINGS else len(SETTINGS)
    own_model = column.model != paper.numbers()["models"].get(column.data, column.model)
    return data == len(DATA), setting, column.setting, data, column.data, own_model, -(column.rounds or 0)


def _column(own: Sequence[Record]) -> Column:
    first = own[0]
    by_row: dict[str, dict[int, Record]] = {}
    for r in sorted(own, key=lambda r: (r["seed"], r["date"])):
        by_row.setdefault(r["row"], {})[r["seed"]] = r
    order = [*paper.order(), *methods.registry(methods.ABLATIONS)]
    names = sorted(by_row, key=lambda n: (order.index(b) if (b := n.partition("@")[0]) in order else len(order), n))
    rows = tuple(Row(n, tuple(by_row[n].values())) for n in names)
    older = len(own) - sum(len(row.runs) for row in rows)
    return Column(first["data"], first["setting"], first["model"], first["planned_rounds"], rows, older)
