"""Finds the data sets with a name, and loads them or a user's own."""

import importlib.resources
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.names import DATA
from pa3dfl.core.options.schema import suggest
from pa3dfl.data import readers
from pa3dfl.data.arrays import NO_COLUMNS, Arrays, Columns
from pa3dfl.data.catalogue import CATALOGUE, Layout, Source
from pa3dfl.data.download import cache, fetch_all
from pa3dfl.data.readers.npz import labels
from pa3dfl.data.readers.published import Pair

_DEBIAN = Path("/usr/share/datasets")


@dataclass(frozen=True)
class Found:
    """The place of a named data set, or what to do if it was not found."""

    name: str
    path: Path | None
    places: tuple[Path, ...]
    hint: str


def places(data_dir: Path | None = None) -> list[Path]:
    """The folders in which a named data set is searched, in order."""
    if data_dir is not None and not os.path.isdir(data_dir):
        raise UserError(f"the data folder {data_dir} is not a folder: create it, or pass one that exists")
    given = [Path(data_dir)] if data_dir is not None else []
    env = os.environ.get("PA3DFL_DATA")
    return [*given, *([Path(os.path.expanduser(env))] if env else []), cache(), _DEBIAN]


def available(data_dir: Path | None = None) -> list[Found]:
    """For each name the place where it was found, or what to do."""
    result = []
    for name, source in CATALOGUE.items():
        searched = _searched(name, data_dir)
        hit = next(_hits(source, searched), None)
        result.append(Found(name, hit[0] if hit else None, tuple(searched), _hint(name, searched)))
    return result


def load(
    data: str, data_dir: Path | None = None, download: bool = True, columns: Columns = NO_COLUMNS, small: str = "refuse"
) -> Arrays:
    """Load a data set by name (its official training part), or a user's own by path.

    `small` says what to do about clients with few rows in a user's own data: refuse, or leave-out.
    """
    if data not in CATALOGUE:
        path = Path(os.path.expanduser(data))  # unlike pathlib, this leaves an unknown ~user as it is
        if not readers.is_own(str(path)):
            guess = suggest(data.lower(), DATA)
            names = _list(DATA)
            raise UserError(
                f"unknown data {data!r}{guess and ', '}{guess}: expected {names}, or the path of {readers.EXPECTED}"
            )
        return readers.read(path, columns, small)
    if given := columns.given():
        raise UserError(f"{data} has columns of its own: omit {given[0]}")
    source, searched, failure = CATALOGUE[data], _searched(data, data_dir), ""
    hit = next(_hits(source, searched), None)
    if hit is None and download and source.downloads:
        try:
            fetch_all(source.downloads, cache())
            hit = next(_hits(source, searched), None)
        except UserError as error:
            failure = f" and could not be downloaded ({error})"
    if hit is None:
        raise UserError(f"{data} was not found in {_list(searched)}{failure}: {_hint(data, searched)}")
    path, layout = hit
    held = layout.read(path, layout.members)
    return held if isinstance(held, Arrays) else _images(data, source, path, held, layout.published)


def _images(name: str, source: Source, path: Path, held: Pair, published: bool) -> Arrays:
    x, y = held
    if x.dtype != np.uint8 or x.shape[1:] != source.shape:
        wanted = "×".join(map(str, source.shape))
        raise UserError(f"{path} holds {x.dtype} of shape {x.shape}: {name} needs uint8 images of {wanted}")
    if published and len(x) != source.count:
        raise UserError(f"{path} holds {len(x):,} images, not {source.count:,}: replace it with a whole copy")
    y = labels(y, len(x), path)
    if y.max() >= source.classes:
        raise UserError(f"{path} holds the label {y.max()}: {name} has labels 0..{source.classes - 1}")
    return Arrays(x, y, source.classes)


def _searched(name: str, data_dir: Path | None) -> list[Path]:
    common = places(data_dir)  # for the bundled set too, so that a mistyped folder never goes unnoticed
    if name == "fashion-mnist-10k":
        return [Path(str(importlib.resources.files("pa3dfl.data") / "bundled"))]
    return [*common, *CATALOGUE[name].extra]


def _hits(source: Source, searched: list[Path]) -> Iterator[tuple[Path, Layout]]:
    for place in searched:
        for layout in source.layouts:
            if not layout.absent(place):
                yield place / layout.at, layout


def _hint(name: str, searched: list[Path]) -> str:
    source = CATALOGUE[name]
    for place in searched:
        for layout in source.layouts:
            if 0 < len(absent := layout.absent(place)) < len(layout.members):
                return f"{place / layout.at} is incomplete, add {_list(absent)} to it"
    if source.remedy:
        return source.remedy
    files = " and ".join(file.name for file in source.downloads)
    return f"put {files} or {name}.npz into one of them or pass --data-dir"


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
