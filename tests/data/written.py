"""Files for the tests of data sources, and the error of a load that must fail, which must be one line."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pa3dfl.core.errors import UserError
from pa3dfl.data import Columns
from pa3dfl.data.arrays import NO_COLUMNS, Arrays
from pa3dfl.data.sources import load

Files = dict[str, bytes]

ROWS = 10
CIFAR = np.random.default_rng(1).integers(0, 256, (ROWS, 3, 32, 32), dtype=np.uint8)
FLAT = CIFAR.reshape(ROWS, -1)


def npz(**arrays: Any) -> bytes:
    np.savez(file := io.BytesIO(), **arrays)
    return file.getvalue()


def write(folder: Path, files: Files) -> Path:
    for name, blob in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(blob)
    return folder


def message(data: str, data_dir: Path | None = None) -> str:
    """The error of a load that must fail, which must be one line."""
    with pytest.raises(UserError) as error:
        load(data, data_dir, download=False)
    assert "\n" not in str(error.value)
    return str(error.value)


def own(path: Path, columns: Columns = NO_COLUMNS, small: str = "refuse") -> Arrays:
    return load(str(path), columns=columns, small=small)


def own_message(path: Path, columns: Columns = NO_COLUMNS, small: str = "refuse") -> str:
    with pytest.raises(UserError) as error:
        own(path, columns, small)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)
