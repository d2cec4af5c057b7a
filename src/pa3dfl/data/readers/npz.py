"""A .npz of arrays x, y and optionally client, and checks of the arrays."""

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.core.words import counted
from pa3dfl.data.arrays import UNKNOWN, Arrays
from pa3dfl.data.readers.published import reading

_CHANNELS = (1, 3, 4)


def read_npz(path: Path, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The named arrays of a .npz; those in `optional` may be absent."""
    with reading(path, "save it again with np.savez, from arrays of numbers or strings"):
        if not zipfile.is_zipfile(path):
            raise ValueError("not a .npz archive")
        with np.load(path, allow_pickle=False) as archive:
            if missing := [name for name in names if name not in archive]:
                held = ", ".join(archive.files) or "nothing"
                raise UserError(f"{path} has no array {missing[0]!r} (it holds {held}): add it")
            return {name: archive[name] for name in (*names, *optional) if name in archive}


def features(x: np.ndarray, path: Path) -> np.ndarray:
    """Byte images as (N, C, H, W); other whole numbers, which may be tokens, as int64; anything else as float32."""
    if x.ndim < 2 or x.size == 0 or x.dtype.kind not in "fiub":
        raise UserError(f"{path} has x of shape {x.shape}, type {x.dtype}: expected numbers, a row per example")
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4:
        channels_last = x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2) if channels_last else x)
    if x.dtype.kind in "iu" and x.dtype != np.uint8:
        if x.dtype == np.uint64 and x.max() > np.iinfo(np.int64).max:
            raise UserError(f"{path} has x with whole numbers beyond int64: save measurements as floats")
        return x.astype(np.int64)
    with np.errstate(over="ignore"):  # a float64 too large for float32 becomes infinite, and is refused below
        x = x.astype(np.float32)
    if not np.isfinite(x).all():
        raise UserError(f"{path} has x with NaN or infinite values: remove or replace those rows")
    return x


def labels(y: np.ndarray, rows: int, path: Path) -> np.ndarray:
    """Whole numbers from 0, one per row, as int64."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]  # a column, as Keras keeps CIFAR's
    if y.shape != (rows,):
        raise UserError(f"{path} has labels of shape {y.shape} for {counted(rows, 'row')}: expected one label per row")
    with np.errstate(invalid="ignore"):  # NaN becomes some integer, which is not equal to it
        whole = y.astype(np.int64) if y.dtype.kind in "fiu" else None
    if whole is None or (whole != y).any() or whole.min() < 0:
        raise UserError(f"{path} has labels that are not whole numbers from 0: renumber them as 0..K-1")
    return whole


def owners(client: np.ndarray, rows: int, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Each row's client as its rank among the sorted names, and the names."""
    if client.shape != (rows,) or client.dtype.kind not in "iuUS":
        held = f"client of shape {client.shape}, type {client.dtype}"
        raise UserError(f"{path} has {held}: expected {rows} integers or strings, one per row")
    names, rank = np.unique(client, return_inverse=True)
    return rank.astype(np.int64), tuple(n.decode(errors="replace") if isinstance(n, bytes) else str(n) for n in names)


def load_own(path: Path) -> Arrays:
    """One client's rows of a larger whole: some classes may be missing, or all but one."""
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}: expected a .npz with arrays x and y")
    arrays = read_npz(path, ("x", "y"), optional=("client",))
    x = features(arrays["x"], path)
    y = labels(arrays["y"], len(x), path)
    if "client" not in arrays:
        return Arrays(x, y, int(y.max()) + 1)
    client, names = owners(arrays["client"], len(x), path)
    return Arrays(x, y, int(y.max()) + 1, client, names)


def read(path: Path) -> Arrays:
    """A whole federation's rows."""
    arrays = load_own(path)
    y = arrays.y
    if (y == y[0]).all():
        raise UserError(f"{path} has only the label {y[0]} in y: at least 2 classes are needed")
    if y.max() >= len(y):  # with row or category numbers as labels, the models' last layer would be huge
        raise UserError(f"{path} has the label {y.max()} in only {counted(len(y), 'row')}: renumber labels as 0..K-1")
    return arrays


def rows(path: Path) -> Arrays:
    """Rows to predict: `x`, and perhaps `y`."""
    arrays = read_npz(path, ("x",), optional=("y",))
    x = features(arrays["x"], path)
    y = labels(arrays["y"], len(x), path) if "y" in arrays else np.full(len(x), UNKNOWN)
    return Arrays(x, y, int(y.max()) + 1)
