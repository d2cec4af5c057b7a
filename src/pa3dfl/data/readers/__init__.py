"""Readers of users' files: one for each format, and the choice by path."""

import os
from pathlib import Path

from pa3dfl.core.errors import UserError
from pa3dfl.data.arrays import Arrays, Columns
from pa3dfl.data.readers import images, leaf, npz, table, texts
from pa3dfl.data.readers.labelled import enough

TABLES = (".csv", ".csv.gz", ".parquet")
SUFFIXES = (".npz", ".json", *TABLES)
EXPECTED = "a .npz, .csv or .parquet, LEAF's .json, or a folder of .json, .txt or images"


def is_own(data: str) -> bool:
    """Whether this looks like a path, not like a name."""
    return data.endswith(SUFFIXES) or os.path.isdir(data) or os.sep in data


def read(path: Path, columns: Columns, small: str) -> Arrays:
    """A user's own data."""
    tabular = path.name.endswith(TABLES)
    if not tabular and (given := columns.given()):
        raise UserError(f"{path} is no table: {given[0]} is for .csv and .parquet")
    if not os.path.exists(path):
        raise UserError(f"there is no file {path}: expected {EXPECTED}")
    return enough(_read(path, columns, tabular), path, small)


def _read(path: Path, columns: Columns, tabular: bool) -> Arrays:
    if os.path.isdir(path):
        if leaf.files(path):
            return leaf.read(path)
        if any(path.glob("*.txt")):
            return texts.read(path)
        if images.found(path):
            return images.read(path)
        raise UserError(f"{path} is empty: expected a folder of .json, .txt or images, see docs/own_data.md")
    if tabular:
        return table.read(path, columns)
    if path.suffix == ".json":
        return leaf.read(path)
    if path.suffix == ".npz":
        return npz.read(path)
    raise UserError(f"{path} has no format that is known here: expected {EXPECTED}")
