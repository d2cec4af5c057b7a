"""The data sets known by name, where they are looked for, and a user's own .npz."""

import importlib.resources
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.names import DATA
from pa3dfl.core.options.schema import suggest
from pa3dfl.data.download import Published, cache, fetch_all
from pa3dfl.data.files import (
    Pair,
    features,
    labels,
    locate,
    owners,
    read_binary,
    read_idx,
    read_npz,
    read_pickles,
)

_DEBIAN = Path("/usr/share/datasets")


@dataclass(frozen=True)
class Arrays:
    """A data set in memory."""

    x: np.ndarray  # uint8 images (N, C, H, W), or float32 features (N, ...)
    y: np.ndarray  # int64 (N,), labels 0..classes-1
    classes: int
    client: np.ndarray | None = None  # int64 (N,), who owns each row, 0..clients-1


@dataclass(frozen=True)
class Found:
    """Where a named data set is, or what to do if it is nowhere."""

    name: str
    path: Path | None
    places: tuple[Path, ...]
    hint: str


@dataclass(frozen=True)
class Layout:
    """One way in which a data set lies in a place: a folder of files, an archive, or a .npz."""

    at: str
    members: tuple[str, ...]
    read: Callable[[Path, tuple[str, ...]], Pair]
    published: bool = True  # as its authors publish it, hence with a known number of rows

    def absent(self, place: Path) -> list[str]:
        """What this layout needs and the place does not have."""
        path = place / self.at
        if path.suffix in (".gz", ".npz"):
            return [] if os.path.isfile(path) else list(self.members)
        return [name for name in self.members if locate(path, name) is None]


@dataclass(frozen=True)
class Source:
    """A data set known by name."""

    shape: tuple[int, int, int]
    classes: int
    count: int
    layouts: tuple[Layout, ...]
    downloads: tuple[Published, ...] = ()
    extra: tuple[Path, ...] = ()  # looked in after the common places


def _read_train(path: Path, names: tuple[str, ...]) -> Pair:
    arrays = read_npz(path, names)
    return features(arrays["x_train"], path), arrays["y_train"]


def _npz(name: str) -> Layout:
    return Layout(f"{name}.npz", ("x_train", "y_train"), _read_train, published=False)


def _cifar(folder: str, archive: str, files: tuple[str, ...], read: Callable[..., Any], **how: Any) -> list[Layout]:
    """The unpacked folder, and the archive that it came from."""
    packed = tuple(f"{folder}/{file}" for file in files)
    reader = partial(read, **how)
    return [Layout(folder, files, reader), Layout(archive, packed, reader)]


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_T10K = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_BINARIES = tuple(f"{batch}.bin" for batch in _BATCHES)

_CATALOGUE = {
    "fashion-mnist-10k": Source((1, 28, 28), 10, 10_000, (Layout("", _T10K, read_idx),)),
    "fashion-mnist": Source(
        shape=(1, 28, 28),
        classes=10,
        count=60_000,
        layouts=(
            *(Layout(folder, _TRAIN, read_idx) for folder in ("", "fashion-mnist", "FashionMNIST/raw")),
            _npz("fashion-mnist"),
        ),
        downloads=(
            Published(_FASHION, "train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Published(_FASHION, "train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        ),
        extra=(Path("/usr/share/dataset-fashion-mnist"),),
    ),
    "cifar10": Source(
        shape=(3, 32, 32),
        classes=10,
        count=50_000,
        layouts=(
            _npz("cifar10"),
            *_cifar("cifar-10-batches-bin", "cifar-10-binary.tar.gz", _BINARIES, read_binary, label_bytes=1),
            *_cifar("cifar-10-batches-py", "cifar-10-python.tar.gz", _BATCHES, read_pickles, key=b"labels"),
        ),
        downloads=(Published(_CIFAR, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
    ),
    "cifar100": Source(
        shape=(3, 32, 32),
        classes=100,
        count=50_000,
        layouts=(
            _npz("cifar100"),
            *_cifar(
                "cifar-100-binary",
                "cifar-100-binary.tar.gz",
                ("train.bin",),
                read_binary,
                label_bytes=2,
            ),
            *_cifar(
                "cifar-100-python",
                "cifar-100-python.tar.gz",
                ("train",),
                read_pickles,
                key=b"fine_labels",
            ),
        ),
        downloads=(Published(_CIFAR, "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
    ),
}


def places(data_dir: Path | None = None) -> list[Path]:
    """The folders in which a named data set is looked for, in order."""
    if data_dir is not None and not os.path.isdir(data_dir):
        raise UserError(f"the data folder {data_dir} is not a folder: create it, or pass one that exists")
    given = [Path(data_dir)] if data_dir is not None else []
    env = os.environ.get("PA3DFL_DATA")
    return [*given, *([Path(os.path.expanduser(env))] if env else []), cache(), _DEBIAN]


def available(data_dir: Path | None = None) -> list[Found]:
    """For each name, where it was found or what to do."""
    result = []
    for name, source in _CATALOGUE.items():
        searched = _searched(name, data_dir)
        hit = next(_hits(source, searched), None)
        result.append(Found(name, hit[0] if hit else None, tuple(searched), _hint(name, searched)))
    return result


def load(data: str, data_dir: Path | None = None, download: bool = True) -> Arrays:
    """Load a data set by name (its official training part), or a user's .npz by path."""
    if data not in _CATALOGUE:
        return _load_user(data)
    source, searched, failure = _CATALOGUE[data], _searched(data, data_dir), ""
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
    x, y = layout.read(path, layout.members)
    if x.dtype != np.uint8 or x.shape[1:] != source.shape:
        wanted = "×".join(map(str, source.shape))
        raise UserError(f"{path} holds {x.dtype} of shape {x.shape}: {data} needs uint8 images of {wanted}")
    if layout.published and len(x) != source.count:
        raise UserError(f"{path} holds {len(x):,} images, not {source.count:,}: replace it with a whole copy")
    y = labels(y, len(x), path)
    if y.max() >= source.classes:
        raise UserError(f"{path} holds the label {y.max()}: {data} has labels 0..{source.classes - 1}")
    return Arrays(x, y, source.classes)


def _searched(name: str, data_dir: Path | None) -> list[Path]:
    common = places(data_dir)  # for the bundled set too, so that a mistyped folder never goes unnoticed
    if name == "fashion-mnist-10k":
        return [Path(str(importlib.resources.files("pa3dfl.data") / "bundled"))]
    return [*common, *_CATALOGUE[name].extra]


def _hits(source: Source, searched: list[Path]) -> Iterator[tuple[Path, Layout]]:
    for place in searched:
        for layout in source.layouts:
            if not layout.absent(place):
                yield place / layout.at, layout


def _hint(name: str, searched: list[Path]) -> str:
    source = _CATALOGUE[name]
    if not source.downloads:
        return "reinstall pa3dfl"
    for place in searched:
        for layout in source.layouts:
            if 0 < len(absent := layout.absent(place)) < len(layout.members):
                return f"{place / layout.at} is incomplete, add {_list(absent)} to it"
    files = " and ".join(file.name for file in source.downloads)
    return f"put {files} or {name}.npz into one of them or pass --data-dir"


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def load_own(path: Path) -> Arrays:
    """One client's rows of a larger whole: some classes may be missing, or all but one."""
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}: expected a .npz with arrays x and y")
    arrays = read_npz(path, ("x", "y"), optional=("client",))
    x = features(arrays["x"], path)
    y = labels(arrays["y"], len(x), path)
    client = arrays.get("client")
    return Arrays(x, y, int(y.max()) + 1, None if client is None else owners(client, len(x), path))


def _load_user(data: str) -> Arrays:
    path = Path(os.path.expanduser(data))  # which, unlike pathlib's, leaves an unknown ~user as it is
    if path.suffix != ".npz":
        guess = suggest(data.lower(), DATA)
        raise UserError(f"unknown data {data!r}{guess and ', '}{guess}: expected {_list(DATA)}, or the path of a .npz")
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}: expected a .npz with arrays x, y and optionally client")
    arrays = load_own(path)
    y = arrays.y
    if (y == y[0]).all():
        raise UserError(f"{path} has only the label {y[0]} in y: at least 2 classes are needed")
    if y.max() >= len(y):  # row or category numbers taken for labels would size the models' last layer
        raise UserError(f"{path} has the label {y.max()} in only {len(y)} rows: renumber labels as 0..K-1")
    return arrays
