"""The data sets with a name: their facts, and the files in which they are published."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pa3dfl.data.arrays import Arrays
from pa3dfl.data.download import Published
from pa3dfl.data.readers import natural
from pa3dfl.data.readers.npz import features, read_npz
from pa3dfl.data.readers.published import Pair, locate, read_binary, read_idx, read_pickles


@dataclass(frozen=True)
class Layout:
    """A form of a data set on disk: a folder of files, an archive, or a .npz."""

    at: str
    members: tuple[str, ...]
    read: Callable[[Path, tuple[str, ...]], Pair | Arrays]
    published: bool = True  # as published, so with a known number of rows

    def absent(self, place: Path) -> list[str]:
        """The files of this layout that are missing in a folder."""
        path = place / self.at
        if path.suffix in (".gz", ".npz", ".xz", ".zip", ".csv"):
            return [] if os.path.isfile(path) else list(self.members)
        return [name for name in self.members if locate(path, name) is None]


@dataclass(frozen=True)
class Source:
    """A data set known by name."""

    layouts: tuple[Layout, ...]
    shape: tuple[int, ...] = ()  # of images; the other readers check what they read
    classes: int = 0
    count: int = 0
    downloads: tuple[Published, ...] = ()
    extra: tuple[Path, ...] = ()  # searched after the common places
    remedy: str = ""  # for data that cannot be downloaded here


def _read_train(path: Path, names: tuple[str, ...]) -> Pair:
    arrays = read_npz(path, names)
    return features(arrays["x_train"], path), arrays["y_train"]


def _npz(name: str) -> Layout:
    return Layout(f"{name}.npz", ("x_train", "y_train"), _read_train, published=False)


def _cifar(folder: str, archive: str, files: tuple[str, ...], read: Callable[..., Any], **how: Any) -> list[Layout]:
    """The two forms of CIFAR: the unpacked folder, and the archive."""
    packed = tuple(f"{folder}/{file}" for file in files)
    reader = partial(read, **how)
    return [Layout(folder, files, reader), Layout(archive, packed, reader)]


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_T10K = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_BINARIES = tuple(f"{batch}.bin" for batch in _BATCHES)

_HAPT = "smartphone+based+recognition+of+human+activities+and+postural+transitions.zip"
_PLAYS = (
    "a_and_c.xml", "dream.xml", "hamlet.xml", "j_caesar.xml", "macbeth.xml", "merchant.xml", "othello.xml",
    "r_and_j.xml",
)  # fmt: skip
_RATINGS = "https://vincentarelbundock.github.io/Rdatasets/csv/lme4/"

CATALOGUE = {
    "fashion-mnist-10k": Source((Layout("", _T10K, read_idx),), (1, 28, 28), 10, 10_000, remedy="reinstall pa3dfl"),
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
            *_cifar("cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin",), read_binary, label_bytes=2),
            *_cifar("cifar-100-python", "cifar-100-python.tar.gz", ("train",), read_pickles, key=b"fine_labels"),
        ),
        downloads=(Published(_CIFAR, "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
    ),
    "hapt": Source(
        layouts=(
            *(Layout(at, ("labels.txt",), natural.hapt_raw) for at in ("RawData", "HAPT Data Set/RawData")),
            *(Layout(at, (at,), natural.hapt_raw) for at in ("HAPT Data Set.zip", _HAPT)),
            *(Layout(at, (at,), natural.hapt_npz) for at in ("hapt.npz", "hapt.npz.xz")),
        ),
        remedy=f"put {_HAPT} from https://archive.ics.uci.edu/dataset/341 into one of them or pass --data-dir",
    ),
    "shakespeare": Source(
        layouts=(
            *(Layout(at, _PLAYS, natural.shakespeare) for at in ("shakespeare", "corpora/shakespeare")),
            *(
                Layout(at, (at,), natural.shakespeare)
                for at in ("shakespeare.zip", "corpora/shakespeare.zip", "nltk-shakespeare.zip")
            ),
        ),
        extra=(Path("~/nltk_data").expanduser(),),
        remedy="say `python -m nltk.downloader shakespeare`, or put NLTK's shakespeare.zip into one of them",
    ),
    "inst-eval": Source(
        layouts=(Layout("InstEval.csv", ("InstEval.csv",), natural.inst_eval),),
        remedy=f"put InstEval.csv from {_RATINGS} into one of them or pass --data-dir",
    ),
}
