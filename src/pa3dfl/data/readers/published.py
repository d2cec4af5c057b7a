"""Readers of the formats in which the named data sets are published: idx, CIFAR's records and pickles."""

import gzip
import math
import os
import pickle
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from pa3dfl.core.errors import UserError

Pair = tuple[np.ndarray, np.ndarray]

_CIFAR = (3, 32, 32)


@contextmanager
def reading(path: Path, remedy: str = "replace it with a whole copy") -> Iterator[None]:
    """Turn any error of a parser on a broken file into one line that names the file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # gzip, zlib, tarfile, zipfile, pickle and numpy each raise their own kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} cannot be read ({reason}): {remedy}") from error


def locate(folder: Path, name: str) -> Path | None:
    """The file `name` of a folder, plain or gzipped."""
    # os.path, unlike pathlib before 3.14, answers False for a folder that may not be entered.
    return next((p for p in (folder / name, folder / f"{name}.gz") if os.path.isfile(p)), None)


def read_idx(path: Path, names: Sequence[str]) -> Pair:
    """A folder's idx file of images and idx file of labels (the MNIST format)."""
    x, y = _contents(path, names)
    return _idx(*x, ndim=3)[:, None], _idx(*y, ndim=1)


def read_binary(path: Path, names: Sequence[str], label_bytes: int) -> Pair:
    """CIFAR's fixed-size records: the label bytes, of which the last is the class, then the pixels."""
    size = label_bytes + math.prod(_CIFAR)
    parts = []
    for where, blob in _contents(path, names):
        with reading(where):
            if len(blob) % size:
                raise ValueError(f"{len(blob):,} bytes are not a whole number of {size}-byte records")
            parts.append(np.frombuffer(blob, np.uint8).reshape(-1, size))
    x = np.concatenate([part[:, label_bytes:] for part in parts])
    return x.reshape(-1, *_CIFAR), np.concatenate([part[:, label_bytes - 1] for part in parts])


def read_pickles(path: Path, names: Sequence[str], key: bytes) -> Pair:
    """CIFAR's pickled batches; `key` names the list of labels."""
    xs, ys = [], []
    for where, blob in _contents(path, names):
        with reading(where):
            batch = _Unpickler(BytesIO(blob), encoding="bytes").load()
            if not isinstance(batch, dict) or not {b"data", key} <= batch.keys():
                raise ValueError(f"not a dictionary with {b'data'!r} and {key!r}")
            ys.append(np.asarray(batch[key]))
            xs.append(_pixels(batch[b"data"]).reshape(len(ys[-1]), *_CIFAR))
    return np.concatenate(xs), np.concatenate(ys)


def _contents(path: Path, names: Sequence[str]) -> list[tuple[Path, bytes]]:
    """The named files of a folder, or members of a .tar.gz, each with its place for messages."""
    if os.path.isdir(path):
        return [_read(locate(path, name) or path / name) for name in names]
    found: dict[str, bytes] = {}
    # One pass over the stream, into memory: seeking in a gzip starts over, and nothing is extracted to disk.
    with reading(path), tarfile.open(path, "r|gz") as archive:
        for member in archive:
            if member.name in names and member.isreg() and (file := archive.extractfile(member)):
                found[member.name] = file.read()
            if len(found) == len(names):
                break
        if missing := [name for name in names if name not in found]:
            raise ValueError(f"it has no member {missing[0]}")
    return [(path / name, found[name]) for name in names]


def _read(path: Path) -> tuple[Path, bytes]:
    with reading(path), gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        return path, file.read()


def _idx(path: Path, blob: bytes, ndim: int) -> np.ndarray:
    with reading(path):
        magic, start = bytes((0, 0, 8, ndim)), 4 + 4 * ndim
        if blob[:4] != magic:
            raise ValueError(f"it starts with {blob[:4].hex()}, an idx file of this kind with {magic.hex()}")
        shape = struct.unpack_from(f">{ndim}I", blob, 4)
        if math.prod(shape) != len(blob) - start:  # before memory is allocated by a size from the header
            raise ValueError(f"its header claims {math.prod(shape):,} bytes, it holds {len(blob) - start:,}")
        return np.frombuffer(blob, np.uint8, offset=start).reshape(shape).copy()  # writable


class _Recorded:
    """Replaces numpy's array and dtype while unpickling: it stores its arguments and runs nothing."""

    def __init__(self, *args: object) -> None:
        self.args = args
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


def _encode(text: str, _codec: str) -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes into the old pickle protocols


_PICKLED: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Recorded,
    ("numpy._core.multiarray", "_reconstruct"): _Recorded,
    ("numpy", "ndarray"): _Recorded,
    ("numpy", "dtype"): _Recorded,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    """Accepts only the few names that a pickled numpy array needs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLED:
            raise ValueError(f"the pickle asks for {module}.{name}, which a CIFAR batch never needs")
        return _PICKLED[module, name]


def _pixels(array: object) -> np.ndarray:
    match array:
        case _Recorded(state=(_, tuple(shape), _Recorded(args=("u1" | b"u1", *_)), fortran, bytes(raw))):
            flat = np.frombuffer(raw, np.uint8)
            return np.ascontiguousarray(flat.reshape(shape, order="F" if fortran else "C"))
    raise ValueError("b'data' is not an array of bytes")
