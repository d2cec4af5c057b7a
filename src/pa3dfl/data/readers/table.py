"""Tables, CSV or Parquet: a row for each example, a column for its label, and optionally one for its owner."""

import csv
import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO, cast

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.schema import suggest
from pa3dfl.data.arrays import Arrays, Columns
from pa3dfl.data.readers.labelled import labelled
from pa3dfl.data.readers.published import reading

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
MOST = 100
"""Categories of an input column: each becomes an input of its own."""

Table = Mapping[str, np.ndarray]
"""Columns of numbers (float64) or of texts, by name; what is missing is NaN or an empty text."""


def read(path: Path, columns: Columns) -> Arrays:
    return chosen(path, load(path), columns)


def load(path: Path) -> Table:
    return (_parquet if path.suffix == ".parquet" else _csv)(path)


def chosen(path: Path, table: Table, columns: Columns) -> Arrays:
    """The chosen columns as arrays."""
    rows = len(next(iter(table.values()), ()))
    if not rows:
        raise UserError(f"{path} is empty: expected a header and a row for each example")
    if columns.label is None:
        raise UserError(f"{path} needs --label-column, the column to predict: one of {', '.join(table)}")
    special = [c for c in (columns.label, columns.client) if c is not None]
    given = None if columns.inputs is None else [c.strip() for c in columns.inputs.split(",")]
    inputs = [c for c in table if c not in special] if given is None else given
    for name in (*special, *inputs):
        if name not in table:
            guess = suggest(name, table)
            raise UserError(f"{path} has no column {name!r}{guess and ', '}{guess}: it has {', '.join(table)}")
        _refuse_missing(path, name, table[name], name in special)
    if both := set(special) & set(inputs):
        raise UserError(f"{path}: the column {both.pop()!r} cannot be an input too: take it out of --input-columns")
    if not inputs:
        raise UserError(f"{path} has no columns but {', '.join(special)}: expected inputs besides")
    x = np.concatenate([_encoded(path, name, table[name]) for name in inputs], 1)
    client = None if columns.client is None else _plain(table[columns.client])
    return labelled(path, x.astype(np.float32), _plain(table[columns.label]), client)


def _encoded(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    """Numbers with mean 0 and deviation 1; for categories a column each, 1 where a row has it."""
    if column.dtype.kind == "f":
        scaled: np.ndarray = (column - column.mean()) / (column.std() or 1.0)
        return scaled[:, None]
    values, rank = np.unique(column, return_inverse=True)
    if len(values) > MOST:
        raise UserError(
            f"{path}: the column {name!r} has {len(values):,} categories, more than {MOST}; leave it out: name the "
            "others with --input-columns"
        )
    return np.eye(len(values))[rank]


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
                raise ValueError(f"row {number} has {len(row)} values for {len(header)} columns")
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
