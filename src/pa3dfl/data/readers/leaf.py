"""LEAF's JSON: `users`, and for each of them in `user_data` the lists `x` and `y`."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.data.arrays import TEST, TRAIN, Arrays
from pa3dfl.data.readers.labelled import labelled
from pa3dfl.data.readers.npz import features
from pa3dfl.data.readers.published import reading
from pa3dfl.data.readers.sequences import alphabet, padded, tokens

_REMEDY = "expected LEAF's JSON with users and user_data"
# FEMNIST, whose images LEAF writes as 784 numbers.
_IMAGES = {784: (1, 28, 28)}


def files(folder: Path) -> list[tuple[Path, int | None]]:
    """The JSON files of a folder; if it has the folders train and test, those in them, with their part."""
    parts: list[tuple[Path, int | None]] = [(folder / "train", TRAIN), (folder / "test", TEST)]
    found = [(p, part) for place, part in parts for p in sorted(place.glob("*.json"))]
    return found or [(p, None) for p in sorted(folder.glob("*.json"))]


def read(path: Path) -> Arrays:
    """One file, or a folder of them."""
    chosen = files(path) if os.path.isdir(path) else [(path, None)]
    x: list[Any] = []
    y: list[Any] = []
    client: list[str] = []
    part: list[int | None] = []
    for file, of in chosen:
        with reading(file, _REMEDY):
            whole = json.loads(file.read_text())
            for user in whole["users"]:
                own = whole["user_data"][user]
                if len(own["x"]) != len(own["y"]):
                    raise ValueError(f"user {user!r} has {len(own['x'])} x and {len(own['y'])} y")
                x += own["x"]
                y += own["y"]
                client += [str(user)] * len(own["y"])
                part += [of] * len(own["y"])
    if not x:
        raise UserError(f"{path} is empty: {_REMEDY}")
    if any(label is None or isinstance(label, (list, dict)) or label != label for label in y):
        raise UserError(f"{path} has a y that is no label: expected a number or a text for each x")
    given = None if TEST not in part else np.array(part, np.int8)
    return labelled(path, _inputs(path, x), y, client, given)


def _inputs(path: Path, x: Sequence[Any]) -> np.ndarray:
    if all(isinstance(row, str) for row in x):
        known = alphabet(x)
        return padded([tokens(row, known) for row in x])
    with reading(path, "expected each x to be a text, or numbers, nested alike"):
        rows = [np.asarray(row) for row in x]
        if any(r.ndim == 0 or r.dtype.kind not in "iuf" for r in rows) or len({r.shape[:-1] for r in rows}) > 1:
            raise ValueError("an x is neither a text nor a list of numbers like the others")
    if all(r.dtype.kind in "iu" for r in rows):  # tokens; 0 is padding
        low = min(int(r.min()) for r in rows if r.size)
        return features(padded([r + (1 - min(low, 1)) for r in rows]), path)
    out = features(padded([r.astype(np.float32) for r in rows]), path)
    return out.reshape(-1, *_IMAGES[out.shape[1]]) if out.ndim == 2 and out.shape[1] in _IMAGES else out
