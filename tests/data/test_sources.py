"""Finding and reading data sets: tiny files in every layout, then broken ones."""

import dataclasses
import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from written import CIFAR, FLAT, ROWS, Files, message, npz, write

from pa3dfl.core.options.names import DATA as ALL
from pa3dfl.data import sources
from pa3dfl.data.readers import EXPECTED
from pa3dfl.data.sources import available, load, places

FASHION = np.random.default_rng(0).integers(0, 256, (ROWS, 28, 28), dtype=np.uint8)
Y = np.arange(ROWS, dtype=np.uint8)
NAMES = ALL[:4]  # of images
FINE = 99 - Y


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of this machine is searched, and published files are complete with ROWS images."""
    monkeypatch.delenv("PA3DFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_DEBIAN", tmp_path / "debian")
    for name in NAMES[1:]:
        small = dataclasses.replace(sources.CATALOGUE[name], count=ROWS, extra=())
        monkeypatch.setitem(sources.CATALOGUE, name, small)


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def binary(x: np.ndarray, *labels: np.ndarray) -> bytes:
    return np.hstack([*(y[:, None] for y in labels), x]).tobytes()


def pickled(batch: object) -> bytes:
    return pickle.dumps(batch, protocol=2)


def tar(files: Files, kind: bytes = tarfile.REGTYPE) -> bytes:
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode="w:gz") as archive:
        for name, blob in {"readme": b"", **files}.items():
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(blob), kind, "/etc/passwd"
            archive.addfile(info, io.BytesIO(blob))
    return packed.getvalue()


TRAIN = {"train-images-idx3-ubyte": idx(FASHION), "train-labels-idx1-ubyte": idx(Y)}
IMAGES, LABELS = TRAIN
TRAIN_GZ = {f"{name}.gz": gzip.compress(blob) for name, blob in TRAIN.items()}
BIN10 = {f"cifar-10-batches-bin/data_batch_{i + 1}.bin": binary(FLAT[i::5], Y[i::5]) for i in range(5)}
PY10 = {
    f"cifar-10-batches-py/data_batch_{i + 1}": pickled({b"data": FLAT[i::5], b"labels": Y[i::5].tolist()})
    for i in range(5)
}
DEALT = np.concatenate([np.arange(ROWS)[i::5] for i in range(5)])  # the order of rows in those batches
BIN100, PY100 = "cifar-100-binary/train.bin", "cifar-100-python/train"
FINE_BIN = {BIN100: binary(FLAT, Y, FINE)}
FINE_PY = {PY100: pickled({b"data": FLAT, b"fine_labels": FINE.tolist(), b"coarse_labels": Y.tolist()})}
FORTRAN = {PY100: pickled({b"data": np.asfortranarray(FLAT), b"fine_labels": FINE.tolist()})}
# As Python 2 wrote the published batches: byte strings, and numpy's module by its old name.
PYTHON_2 = {
    PY100: b"\x80\x02}(U\x0bfine_labels](" + b"".join(b"K" + bytes([y]) for y in FINE) + b"eU\x04data"
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01K\x0aM\x00\x0c\x86"
    b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    b"T" + struct.pack("<i", FLAT.size) + FLAT.tobytes() + b"tbu."
}
LAST = {"x_train": CIFAR.transpose(0, 2, 3, 1)[:7], "x_test": CIFAR, "y_test": Y}  # channels last, fewer rows

LAYOUTS: list[tuple[str, Files, np.ndarray, np.ndarray]] = [
    ("fashion-mnist", TRAIN, FASHION[:, None], Y),
    ("fashion-mnist", TRAIN_GZ, FASHION[:, None], Y),
    ("fashion-mnist", {IMAGES: TRAIN[IMAGES], f"{LABELS}.gz": TRAIN_GZ[f"{LABELS}.gz"]}, FASHION[:, None], Y),
    ("fashion-mnist", {f"fashion-mnist/{name}": TRAIN_GZ[name] for name in TRAIN_GZ}, FASHION[:, None], Y),
    ("fashion-mnist", {f"FashionMNIST/raw/{name}": TRAIN[name] for name in TRAIN}, FASHION[:, None], Y),
    ("fashion-mnist", {"fashion-mnist.npz": npz(x_train=FASHION, y_train=Y)}, FASHION[:, None], Y),
    ("cifar10", BIN10, CIFAR[DEALT], Y[DEALT]),
    ("cifar10", {"cifar-10-binary.tar.gz": tar(BIN10)}, CIFAR[DEALT], Y[DEALT]),
    ("cifar10", PY10, CIFAR[DEALT], Y[DEALT]),
    ("cifar10", {"cifar-10-python.tar.gz": tar(PY10)}, CIFAR[DEALT], Y[DEALT]),
    ("cifar10", {"cifar10.npz": npz(x_train=CIFAR, y_train=Y)}, CIFAR, Y),
    ("cifar10", {"cifar10.npz": npz(**LAST, y_train=Y[:7, None])}, CIFAR[:7], Y[:7]),
    ("cifar100", FINE_BIN, CIFAR, FINE),
    ("cifar100", {"cifar-100-binary.tar.gz": tar(FINE_BIN)}, CIFAR, FINE),
    ("cifar100", FINE_PY, CIFAR, FINE),
    ("cifar100", FORTRAN, CIFAR, FINE),
    ("cifar100", PYTHON_2, CIFAR, FINE),
    ("cifar100", {"cifar-100-python.tar.gz": tar(FINE_PY)}, CIFAR, FINE),
    ("cifar100", {"cifar100.npz": npz(**LAST, y_train=FINE[:7])}, CIFAR[:7], FINE[:7]),
]


@pytest.mark.parametrize(("name", "files", "x", "y"), LAYOUTS)
def test_layouts(tmp_path: Path, name: str, files: Files, x: np.ndarray, y: np.ndarray) -> None:
    write(tmp_path, files)
    before = sorted(tmp_path.rglob("*"))
    arrays = load(name, tmp_path, download=False)
    np.testing.assert_array_equal(arrays.x, x)
    np.testing.assert_array_equal(arrays.y, y)
    assert (arrays.x.dtype, arrays.y.dtype, arrays.client) == (np.uint8, np.int64, None)
    assert arrays.x.flags.c_contiguous
    assert arrays.x.flags.writeable
    assert arrays.classes == (100 if name == "cifar100" else 10)
    assert sorted(tmp_path.rglob("*")) == before  # nothing was extracted


def test_bundled_images_are_the_published_test_set() -> None:
    arrays = load("fashion-mnist-10k", download=False)
    assert arrays.x.shape == (10_000, 1, 28, 28)
    assert np.bincount(arrays.y).tolist() == [1000] * 10
    assert arrays.y[:5].tolist() == [9, 2, 1, 1, 6]


IMAGES_GZ, BIN5 = f"{IMAGES}.gz", "cifar-10-batches-bin/data_batch_5.bin"
GZ, BIN4 = TRAIN_GZ[IMAGES_GZ], {name: BIN10[name] for name in BIN10 if name != BIN5}
TAR10, TAR100, NPZ10 = "cifar-10-binary.tar.gz", "cifar-100-binary.tar.gz", "cifar10.npz"

BROKEN: list[tuple[str, Files, str]] = [
    ("fashion-mnist", {**TRAIN, IMAGES: b""}, "it starts with , an idx file"),
    ("fashion-mnist", {**TRAIN, IMAGES: TRAIN[LABELS]}, "starts with 00000801, an idx file of this kind"),
    ("fashion-mnist", {**TRAIN, IMAGES: TRAIN[IMAGES][:9]}, f"{IMAGES} cannot be read ("),
    ("fashion-mnist", {**TRAIN, IMAGES: TRAIN[IMAGES][:-1]}, "header claims 7,840 bytes, it holds 7,839"),
    ("fashion-mnist", {**TRAIN, LABELS: idx(Y)[:4] + b"\xff" * 4 + b"1"}, "claims 4,294,967,295 bytes"),
    ("fashion-mnist", {**TRAIN, IMAGES: idx(FASHION[:9])}, "holds 9 images, not 10: replace it"),
    ("fashion-mnist", {**TRAIN, IMAGES: idx(FASHION[:, 1:])}, "needs uint8 images of 1×28×28"),
    ("fashion-mnist", {**TRAIN, LABELS: idx(Y[:9])}, "labels of shape (9,) for 10 rows"),
    ("fashion-mnist", {**TRAIN_GZ, IMAGES_GZ: GZ[:3000]}, f"{IMAGES_GZ} cannot be read ("),
    ("fashion-mnist", {**TRAIN_GZ, IMAGES_GZ: GZ[:5]}, f"{IMAGES_GZ} cannot be read ("),
    ("fashion-mnist", {**TRAIN_GZ, IMAGES_GZ: GZ[:99] + b"?" + GZ[100:]}, f"{IMAGES_GZ} cannot be read ("),
    ("fashion-mnist", {**TRAIN_GZ, IMAGES_GZ: b"text"}, f"{IMAGES_GZ} cannot be read ("),
    ("cifar10", {TAR10: tar(BIN10)[:-4000]}, f"{TAR10} cannot be read ("),
    ("cifar10", {TAR10: b"<html>not found</html>"}, f"{TAR10} cannot be read ("),
    ("cifar10", {TAR10: tar(BIN4)}, f"it has no member {BIN5}"),
    ("cifar10", {**BIN10, BIN5: b"12345"}, f"{BIN5} cannot be read (5 bytes are not a whole number of"),
    ("cifar10", {**BIN10, BIN5: b""}, "holds 8 images, not 10"),
    ("cifar10", {**BIN10, BIN5: binary(FLAT[:2], Y[:2] + 9)}, "the label 10: cifar10 has labels 0..9"),
    ("cifar10", BIN4, "incomplete, add data_batch_5.bin to it"),
    ("cifar10", {NPZ10: npz(x_train=FASHION, y_train=Y)}, "(10, 1, 28, 28): cifar10 needs uint8 images"),
    ("cifar10", {NPZ10: npz(x_train=CIFAR / 255, y_train=Y)}, "holds float32"),
    ("cifar10", {NPZ10: npz(x_train=CIFAR, y_train=Y + 1)}, "the label 10: cifar10 has labels 0..9"),
    ("cifar10", {NPZ10: npz(x=CIFAR, y=Y)}, "has no array 'x_train' (it holds x, y)"),
    ("cifar100", {TAR100: tar({BIN100: b""}, tarfile.SYMTYPE)}, f"it has no member {BIN100}"),
    ("cifar100", {PY100: FINE_PY[PY100][:-9]}, f"{PY100} cannot be read ("),
    ("cifar100", {PY100: pickled([1, 2])}, "not a dictionary with b'data' and b'fine_labels'"),
    ("cifar100", {PY100: pickled({b"data": FLAT})}, "not a dictionary with b'data' and b'fine_labels'"),
    ("cifar100", {PY100: pickled({b"data": "pixels", b"fine_labels": [0] * 10})}, "not an array of bytes"),
    ("cifar100", {PY100: pickled({b"data": FLAT * 1.0, b"fine_labels": [0] * 10})}, "not an array of bytes"),
    ("cifar100", {PY100: pickled({b"data": FLAT, b"fine_labels": [0] * 9})}, "cannot reshape array"),
    ("cifar100", {PY100: pickled({b"data": FLAT, b"fine_labels": ["cat"] * 10})}, "not whole numbers from 0"),
    ("cifar100", {PY100: pickled({b"data": FLAT, b"fine_labels": [100] * 10})}, "the label 100"),
]


@pytest.mark.parametrize(("name", "files", "reason"), BROKEN)
def test_broken_files(tmp_path: Path, name: str, files: Files, reason: str) -> None:
    error = message(name, write(tmp_path, files))
    assert reason in error
    assert str(tmp_path) in error


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.target,)


def test_pickles_execute_no_code(tmp_path: Path) -> None:
    evil = Evil(tmp_path / "ran")
    batch = pickled({b"data": FLAT, b"fine_labels": FINE.tolist(), b"more": evil})
    write(tmp_path, {PY100: batch, "cifar-10-python.tar.gz": tar(dict.fromkeys(PY10, pickle.dumps(evil, 4)))})
    write(tmp_path, {"own.npz": npz(x=CIFAR, y=np.array([evil] * ROWS, dtype=object))})
    assert f"asks for {os.mkdir.__module__}.mkdir" in message("cifar100", tmp_path)
    assert f"asks for {os.mkdir.__module__}.mkdir" in message("cifar10", tmp_path)
    assert "save it again with np.savez" in message(str(tmp_path / "own.npz"))
    assert not (tmp_path / "ran").exists()
    pickle.loads(batch)
    assert (tmp_path / "ran").exists()  # it would have


def test_folders_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PA3DFL_DATA", str(tmp_path / "env"))
    order = [tmp_path, tmp_path / "env", tmp_path / "cache" / "pa3dfl", tmp_path / "debian"]
    assert places(tmp_path) == order
    assert places() == order[1:]
    for i, place in reversed(list(enumerate(order))):  # each one found takes precedence over the later ones
        write(place, {NPZ10: npz(x_train=CIFAR[i : i + 1], y_train=Y[i : i + 1])})
        assert load("cifar10", tmp_path).y == [i]
        assert {f.name: f.path for f in available(tmp_path)}["cifar10"] == place / NPZ10
    monkeypatch.delenv("PA3DFL_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert places() == [Path("/home/someone/.cache/pa3dfl"), tmp_path / "debian"]


def test_an_extra_folder_serves_one_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = dataclasses.replace(sources.CATALOGUE["fashion-mnist"], extra=(tmp_path / "extra",))
    monkeypatch.setitem(sources.CATALOGUE, "fashion-mnist", extra)
    write(tmp_path / "extra", TRAIN)
    np.testing.assert_array_equal(load("fashion-mnist", download=False).y, Y)
    assert str(tmp_path / "extra") not in message("cifar10")


def test_available(tmp_path: Path) -> None:
    write(tmp_path, BIN10)
    found = {f.name: f for f in available(tmp_path)}
    assert tuple(found) == ALL
    assert NAMES == ("fashion-mnist-10k", "fashion-mnist", "cifar10", "cifar100")
    assert found["fashion-mnist-10k"].path == Path(sources.__file__).parent / "bundled"
    assert found["cifar10"].path == tmp_path / "cifar-10-batches-bin"
    assert found["cifar100"].path is None
    assert found["cifar100"].places == tuple(places(tmp_path))
    hint = "put cifar-100-binary.tar.gz or cifar100.npz into one of them or pass --data-dir"
    assert found["cifar100"].hint == hint
    listed = ", ".join(map(str, places(tmp_path)))
    assert message("cifar100", tmp_path) == f"cifar100 was not found in {listed}: {hint}"


@pytest.mark.parametrize("name", NAMES)
def test_data_dir_that_does_not_exist(tmp_path: Path, name: str) -> None:
    assert f"{tmp_path / 'typo'} is not a folder" in message(name, tmp_path / "typo")


def test_unknown_name() -> None:
    known = f"expected {', '.join(ALL)}, or the path of {EXPECTED}"
    assert message("CIFAR-10") == f"unknown data 'CIFAR-10', did you mean cifar10?: {known}"
    assert message("zzz") == f"unknown data 'zzz': {known}"
