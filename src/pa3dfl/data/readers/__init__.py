"""Readers of users' files: one for each format, and the choice by path."""

import os
from pathlib import Path
from types import ModuleType

from pa3dfl.core.errors import UserError
from pa3dfl.data.arrays import Arrays, Coding, Columns
from pa3dfl.data.readers import images, leaf, npz, table, texts
from pa3dfl.data.readers.labelled import enough

TABLES = (".csv", ".csv.gz", ".parquet")
SUFFIXES = (".npz", ".json", *TABLES)
OF_KIND = {
    "npz": "a .npz with x",
    "table": "a .csv or .parquet",
    "leaf": "LEAF's .json",
    "texts": "a folder of .txt",
    "images": "a folder of images",
}
"""For each kind of coding, the files that it describes. A .npz holds the numbers themselves and suits every coding."""
EXPECTED = "a .npz, .csv or .parquet, LEAF's .json, or a folder of .json, .txt or images"


def is_own(data: str) -> bool:
    """Whether this looks like a path, not like the name of a data set."""
    return data.endswith(SUFFIXES) or os.path.isdir(data) or os.sep in data


def read(path: Path, columns: Columns, small: str) -> Arrays:
    """A user's own data."""
    tabular = path.name.endswith(TABLES)
    if not tabular and (given := columns.given()):
        raise UserError(f"{path} is no table: {given[0]} is for .csv and .parquet")
    reader = _reader(path)
    return enough(table.read(path, columns) if reader is table else reader.read(path), path, small)


def rows(path: Path, coding: Coding) -> Arrays:
    """Rows to predict, coded like the data of the run. Missing labels are UNKNOWN."""
    reader, kind = _reader(path), coding.get("kind", "npz")
    name = reader.__name__.rpartition(".")[2]
    if reader is npz:
        return npz.rows(path)
    if name != kind:
        raise UserError(f"{path} is not what this model was trained on: expected {OF_KIND[kind]}")
    made: Arrays = reader.rows(path, coding)
    return made


def _reader(path: Path) -> ModuleType:
    if not os.path.exists(path):
        raise UserError(f"there is no file {path}: expected {EXPECTED}")
    if os.path.isdir(path):
        if leaf.files(path):
            return leaf
        if any(path.glob("*.txt")):
            return texts
        if images.found(path):
            return images
        raise UserError(f"{path} is empty: expected a folder of .json, .txt or images, see docs/own_data.md")
    if path.name.endswith(TABLES):
        return table
    if path.suffix == ".json":
        return leaf
    if path.suffix == ".npz":
        return npz
    raise UserError(f"{path} has an unknown format: expected {EXPECTED}")
