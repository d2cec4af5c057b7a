"""A user's own data: one .npz with x, y and perhaps client."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import CIFAR, FLAT, message, npz, write

from pa3dfl.core.errors import UserError
from pa3dfl.data import Arrays
from pa3dfl.data.sources import load


def own(tmp_path: Path, **arrays: Any) -> Arrays:
    return load(str(write(tmp_path, {"own.npz": npz(**arrays)}) / "own.npz"))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((6, 8, 9), (6, 1, 8, 9)),
        ((6, 8, 9, 3), (6, 3, 8, 9)),
        ((6, 8, 9, 1), (6, 1, 8, 9)),
        ((6, 4, 8, 9), (6, 4, 8, 9)),
        ((6, 3, 8, 3), (6, 3, 8, 3)),  # both could be channels: the order that the library uses wins
        ((6, 8, 8, 8), (6, 8, 8, 8)),
    ],
)
def test_own_images(tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = CIFAR.ravel()[: np.prod(shape)].reshape(shape)
    arrays = own(tmp_path, x=x, y=[0, 1, 2, 0, 1, 2])
    assert (arrays.x.dtype, arrays.x.shape, arrays.classes) == (np.uint8, expected, 3)
    moved = x if shape == expected or x.ndim == 3 else np.moveaxis(x, -1, 1)
    np.testing.assert_array_equal(arrays.x.reshape(moved.shape), moved)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, bool, np.uint8])
def test_own_features_become_float32(tmp_path: Path, dtype: type) -> None:
    x = (FLAT[:6, :5] % 2).astype(dtype)
    arrays = own(tmp_path, x=x, y=[0.0, 1.0, 0.0, 3.0, 1.0, 1.0])
    np.testing.assert_array_equal(arrays.x, x.astype(np.float32))
    assert (arrays.x.dtype, arrays.y.dtype) == (np.float32, np.int64)
    assert arrays.y.tolist() == [0, 1, 0, 3, 1, 1]
    assert (arrays.classes, arrays.client) == (4, None)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint16, np.int64, np.uint64])
def test_own_whole_numbers_may_be_tokens(tmp_path: Path, dtype: type) -> None:
    x = (FLAT[:6, :5] % 100).astype(dtype)
    arrays = own(tmp_path, x=x, y=[0, 1, 0, 1, 1, 1])
    assert arrays.x.dtype == np.int64
    np.testing.assert_array_equal(arrays.x, x)


@pytest.mark.parametrize("client", [[30, -5, 30, 7], ["zoe", "al", "zoe", "bo"], [b"z", b"a", b"z", b"b"]])
def test_own_clients_are_numbered_in_sorted_order(tmp_path: Path, client: list) -> None:
    arrays = own(tmp_path, x=np.ones((40, 2)), y=[0, 1, 0, 1] * 10, client=client * 10)
    assert arrays.client is not None
    assert (arrays.client.dtype, arrays.client.tolist()) == (np.int64, [2, 0, 2, 1] * 10)
    assert arrays.names == tuple(n.decode() if isinstance(n, bytes) else str(n) for n in sorted(set(client)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": [[0.0], [np.nan], [1], [1]]}, "NaN or infinite"),
        ({"x": [[0.0], [1e300], [1], [1]]}, "NaN or infinite"),
        ({"x": [["a"], ["b"], ["c"], ["d"]]}, "type <U1: expected numbers"),
        ({"x": np.ones(4)}, "x of shape (4,)"),
        ({"x": np.ones((0, 3))}, "x of shape (0, 3)"),
        ({"x": np.ones((3, 2))}, "labels of shape (4,) for 3 rows"),
        ({"y": [0, 1, -1, 0]}, "not whole numbers from 0"),
        ({"y": [0, 1, 0.5, 0]}, "not whole numbers from 0"),
        ({"y": [0, 1, np.nan, 0]}, "not whole numbers from 0"),
        ({"y": [0, 1, np.inf, 0]}, "not whole numbers from 0"),
        ({"y": np.array([0, 1, 2**63, 0], np.uint64)}, "not whole numbers from 0"),
        ({"y": ["a", "b", "c", "d"]}, "not whole numbers from 0"),
        ({"y": [1, 1, 1, 1]}, "only the label 1 in y: at least 2 classes"),
        ({"y": [0, 1, 10**9, 0]}, "the label 1000000000 in only 4 rows"),
        ({"y": np.eye(4)}, "labels of shape (4, 4)"),
        ({"client": [0, 1, 2]}, "client of shape (3,)"),
        ({"client": [0.5, 1, 2, 3]}, "type float64: expected 4 integers or strings"),
    ],
)
def test_invalid_arrays_are_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    good = {"x": np.ones((4, 2)), "y": [0, 1, 0, 1]}
    assert own(tmp_path, **good).classes == 2
    with pytest.raises(UserError) as error:
        own(tmp_path, **{**good, **change})
    assert reason in str(error.value)


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    path, whole = tmp_path / "own.npz", npz(x=np.ones((4, 2)), y=[0, 1, 0, 1])
    assert f"there is no file {path}" in message(str(path))
    np.save(array := io.BytesIO(), np.ones(3))
    for blob in (b"", b"text", whole[: len(whole) // 2], array.getvalue()):
        write(tmp_path, {"own.npz": blob})
        assert f"{path} cannot be read (not a .npz archive)" in message(str(path))
    write(tmp_path, {"own.npz": whole.replace(b"NUMPY", b"BUMPY")})
    assert f"{path} cannot be read (" in message(str(path))
    write(tmp_path, {"own.npz": npz(x=[1])})
    assert message(str(path)) == f"{path} has no array 'y' (it holds x): add it"
