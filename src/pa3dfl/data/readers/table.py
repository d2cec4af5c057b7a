"""Tables, CSV or Parquet: a row for each example, a column for its label, and optionally one for its owner."""

import csv
import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO, cast

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.schema import suggest
from pa3dfl.core.words import counted
from pa3dfl.data.arrays import Arrays, Coding, Columns
from pa3dfl.data.readers.labelled import labelled, recognised
from pa3dfl.data.readers.published import reading

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
MOST = 100
"""The most categories of an input column; each becomes an input."""

Table = Mapping[str, np.ndarray]
"""Columns of numbers (float64) or of texts, by name; what is missing is NaN or an empty text."""


def read(path: Path, columns: Columns) -> Arrays:
    return chosen(path, load(path), columns)


def load(path: Path) -> Table:
    table = (_parquet if path.suffix == ".parquet" else _csv)(path)
    if not len(next(iter(table.values()), ())):
        raise UserError(f"{path} is empty: expected a header and a row for each example")
    return table


def chosen(path: Path, table: Table, columns: Columns) -> Arrays:
    """The chosen columns as arrays."""
    if columns.label is None:
        raise UserError(f"{path} needs --label-column, the column to predict: one of {', '.join(table)}")
    special = [c for c in (columns.label, columns.client) if c is not None]
    given = None if columns.inputs is None else [c.strip() for c in columns.inputs.split(",")]
    inputs = [c for c in table if c not in special] if given is None else given
    for name in (*special, *inputs):
        _present(path, table, name)
        _refuse_missing(path, name, table[name], name in special)
    if both := set(special) & set(inputs):
        raise UserError(f"{path}: the column {both.pop()!r} cannot be an input too: take it out of --input-columns")
    if not inputs:
        raise UserError(f"{path} has no columns but {', '.join(special)}: expected further columns as inputs")
    codes = {name: _code(path, name, table[name]) for name in inputs}
    client = None if columns.client is None else _plain(table[columns.client])
    coding = {"kind": "table", "label": columns.label, "columns": codes}
    return labelled(path, _coded(path, table, codes), _plain(table[columns.label]), client, coding)


def rows(path: Path, coding: Coding) -> Arrays:
    """Rows to predict: the same inputs, and perhaps the label."""
    table, label = load(path), coding["label"]
    for name in coding["columns"]:
        _present(path, table, name)
        _refuse_missing(path, name, table[name], True)
    if label in table:
        _refuse_missing(path, label, table[label], True)
    x = _coded(path, table, coding["columns"])
    return recognised(path, x, _plain(table[label]) if label in table else None, coding)


def _present(path: Path, table: Table, name: str) -> None:
    if name not in table:
        guess = suggest(name, table)
        raise UserError(f"{path} has no column {name!r}{guess and ', '}{guess}: it has {', '.join(table)}")


def _code(path: Path, name: str, column: np.ndarray) -> Coding:
    """What a column's values become: numbers with mean 0 and deviation 1; for categories an input each, 0 or 1."""
    if column.dtype.kind == "f":
        return {"mean": float(column.mean()), "std": float(column.std()) or 1.0}
    values = np.unique(column).tolist()
    if len(values) > MOST:
        raise UserError(
            f"{path}: the column {name!r} has {len(values):,} categories, more than {MOST}; leave it out: name the "
            "others with --input-columns"
        )
    return {"values": values}


def _coded(path: Path, table: Table, codes: Mapping[str, Coding]) -> np.ndarray:
    parts = [_inputs(path, name, table[name], code) for name, code in codes.items()]
    return np.concatenate(parts, 1).astype(np.float32)


def _inputs(path: Path, name: str, column: np.ndarray, code: Coding) -> np.ndarray:
    if "mean" in code:
        if column.dtype.kind != "f":
            raise UserError(f"{path}: the column {name!r} holds words: the model was trained on numbers")
        scaled: np.ndarray = (column - code["mean"]) / code["std"]
        return scaled[:, None]
    values = [str(v) for v in _plain(column)]
    place = {v: i for i, v in enumerate(code["values"])}
    if unknown := [v for v in values if v not in place]:
        raise UserError(
            f"{path}: the column {name!r} has {unknown[0]!r}, which the model does not know: expected "
            f"{', '.join(place)}"
        )
    return np.eye(len(place))[[place[v] for v in values]]


def _refuse_missing(path: Path, name: str, column: np.ndarray, special: bool) -> None:
    bad = ~np.isfinite(column) if column.dtype.kind == "f" else column == ""
    if bad.any():
        first = int(bad.argmax())
        remedy = "" if special else ", or leave the column out: name the others with --input-columns"
        raise UserError(
            f"{path}: the column {name!r} has no value in row {first + 1} ({int(bad.sum())} of {len(bad)} rows are "
            f"empty, NaN or infinite): fill them in or remove them{remedy}"
        )


def _plain(column: np.ndarray) -> list[object]:
    """Values as names: 3 instead of 3.0."""
    return [int(v) if isinstance(v, float) and v.is_integer() else v for v in column.tolist()]


def _csv(path: Path) -> Table:
    with reading(path, "save it again as CSV in UTF-8"), _opened(path) as file:
        first = file.readline()
        file.seek(0)
        lines = csv.reader(file, delimiter=max(",;\t", key=first.count))
        header = [name.strip() for name in next(lines, [])]
        if len(set(header)) < len(header):
            raise ValueError("two columns have the same name")
        rows = [row for row in lines if row]
        for number, row in enumerate(rows, 1):
            if len(row) != len(header):
                raise ValueError(f"row {number} has {counted(len(row), 'value')} for {counted(len(header), 'column')}")
        return {name: _typed(column) for name, column in zip(header, zip(*rows, strict=True), strict=False)}


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return open(path, encoding="utf-8-sig", newline="")


def _typed(texts: Iterable[str]) -> np.ndarray:
    """Numbers, if all values that are present are numbers."""
    stripped = ["" if (s := t.strip()).lower() in MISSING else s for t in texts]
    try:
        return np.array([float(t) if t else np.nan for t in stripped])
    except ValueError:
        return np.array(stripped)


def _parquet(path: Path) -> Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError(f"{path}: Parquet needs pyarrow: pip install 'pa3dfl[tables]', or save it as CSV") from None
    with reading(path, "write it again, or save it as CSV"):
        table, columns = pq.read_table(path), {}
        for name in table.column_names:
            column = table[name]
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            kind = column.type
            if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
                columns[name] = np.array([np.nan if v is None else float(v) for v in column.to_pylist()])
            elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind):
                columns[name] = np.array(["" if v is None else str(v) for v in column.to_pylist()])
            else:
                raise ValueError(f"the column {name!r} holds {kind}: expected numbers, texts or truth values")
        return columns
