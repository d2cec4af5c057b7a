"""A run directory as tables: `pa3dfl.load(path)`. Data frames where pandas is installed, else lists of records."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import RULES_OF_TESTING, read_yaml

if TYPE_CHECKING:
    from pa3dfl.runs.page import Embedded

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class RunData:
    """A run, finished or not. Tables are read when they are first used."""

    path: Path
    config: dict[str, Any]

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None while it is unfinished."""
        return self._json("summary.json")

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the history holds and what was left out of it; empty for a run without a history."""
        return self._json("history/about.json") or {}

    @cached_property
    def rounds(self) -> Any:
        """One row for each round: loss, bytes, seconds, participants, and means over clients where it was evaluated."""
        return frame(read_rounds(self.path))

    @cached_property
    def client_rows(self) -> Records:
        """The rows of clients.csv."""
        return read_clients(self.path)

    @cached_property
    def clients(self) -> Any:
        """One row for each client, at the evaluation that validation chose; `label_0`, …: its rows of each label."""
        counts = self.labels()
        rows = [dict(row) for row in self.client_rows]
        for row in rows:
            row |= {f"label_{k}": int(n) for k, n in enumerate(counts.get(row["client"], ()))}
        return frame(rows)

    @cached_property
    def evaluations(self) -> Any:
        """One row for each kept evaluation and client: test accuracy by rule, validation loss, α."""
        columns = ("client", *RULES_OF_TESTING, "loss", "alpha")
        return frame(
            [
                {"round": rnd} | dict(zip(found, values, strict=True))
                for rnd, arrays in self.history()
                for found in [[c for c in columns if c in arrays]]
                for values in zip(*(arrays[c].tolist() for c in found), strict=True)
            ]
        )

    @cached_property
    def embeddings(self) -> Any:
        """One row for each kept evaluation and client: the client's embedding, as `e0`, `e1`, …"""
        return frame(
            [
                {"round": rnd, "client": int(i)} | {f"e{k}": v for k, v in enumerate(row)}
                for rnd, arrays in self.history()
                if "embeddings" in arrays
                for i, row in zip(arrays["client"], arrays["embeddings"].tolist(), strict=True)
            ]
        )

    @cached_property
    def temperatures(self) -> Any:
        """One row for each kept evaluation and layer: the layer's attention temperature τ."""
        return frame(
            [
                {"round": rnd, "layer": str(layer), "tau": float(tau)}
                for rnd, arrays in self.history()
                if "tau" in arrays
                for layer, tau in zip(arrays["tau_layers"], arrays["tau"], strict=True)
            ]
        )

    def page(self, *others: str | Path, height: int = 900) -> "Embedded":
        """The page of this run, and of others beside it, for a cell of a notebook."""
        from pa3dfl.runs.page import Embedded, rendered

        return Embedded(rendered([self.path, *map(Path, others)]), height)

    def _repr_html_(self) -> str | None:
        """The page, for a notebook; without Bokeh the notebook shows the object as text."""
        return self.page()._repr_html_() if find_spec("bokeh") else None

    def history(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """The arrays of each kept evaluation, in the order of rounds; `about["arrays"]` explains them."""
        for file in sorted((self.path / "history").glob("round-*.npz")):
            yield int(file.stem.removeprefix("round-")), _arrays(file)

    def labels(self) -> dict[int, np.ndarray]:
        """How many rows of each label each client owns."""
        file = self.path / "history" / "clients.npz"
        arrays = _arrays(file) if file.is_file() else {"client": np.empty(0), "labels": np.empty(0)}
        return dict(zip(arrays["client"].tolist(), arrays["labels"], strict=True))

    def _json(self, name: str) -> dict[str, Any] | None:
        file = self.path / name
        try:
            return json.loads(file.read_text()) if file.is_file() else None
        except ValueError as e:
            raise UserError(f"{file} is not valid JSON ({e}): restore it, or remove it") from None


def load(path: str | Path) -> RunData:
    path = Path(path)
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path} is not a run directory: it has no config.yaml")
    return RunData(path, read_yaml(path / "config.yaml"))


def read_rounds(path: Path) -> Records:
    file, records = path / "rounds.jsonl", []
    lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    for n, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            if n < len(lines):  # the last line may be incomplete: the run is writing it, or was stopped while writing
                raise UserError(f"{file}, line {n}, is not valid JSON: restore the file") from None
    return records


def read_clients(path: Path) -> Records:
    return read_table(path / "clients.csv")


def read_table(file: Path) -> Records:
    """The rows of a CSV file; none where there is no file."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        header, *rows = list(csv.reader(lines)) or [[]]
    columns = [
        column if name == "name" else _numbers(column)
        for name, column in zip(header, zip(*rows, strict=False), strict=False)
    ]
    return [dict(zip(header, row, strict=False)) for row in zip(*columns, strict=True)]


def frame(records: Records) -> Any:
    try:
        import pandas  # optional: without it tables are lists of records
    except ImportError:
        return records
    return pandas.DataFrame.from_records(records)


def _arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, OSError, EOFError, KeyError) as e:
        raise UserError(f"{file} cannot be read ({e}): remove it, the run's other evaluations stay readable") from None


def _numbers(column: Sequence[str]) -> Sequence[Any]:
    """A CSV column as whole numbers or floats, None where a cell is empty; others, such as widths 3/16, stay text."""
    for kind in (int, float):
        with suppress(ValueError):
            return [kind(text) if text else None for text in column]
    return column
