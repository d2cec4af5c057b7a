"""LEAF's JSON: `users`, and for each of them in `user_data` the lists `x` and `y`."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.data.arrays import TEST, TRAIN, Arrays, Coding
from pa3dfl.data.readers.labelled import labelled, recognised
from pa3dfl.data.readers.npz import features
from pa3dfl.data.readers.published import reading
from pa3dfl.data.readers.sequences import alphabet, padded, tokens

_REMEDY = "expected LEAF's JSON with users and user_data"
_EXPECTED = "expected each x to be a text, or numbers, nested alike"
# FEMNIST, whose images LEAF writes as 784 numbers.
_IMAGES = {784: (1, 28, 28)}


def files(folder: Path) -> list[tuple[Path, int | None]]:
    """The JSON files of a folder; if it has the folders train and test, those in them, with their part."""
    parts: list[tuple[Path, int | None]] = [(folder / "train", TRAIN), (folder / "test", TEST)]
    found = [(p, part) for place, part in parts for p in sorted(place.glob("*.json"))]
    return found or [(p, None) for p in sorted(folder.glob("*.json"))]


def read(path: Path) -> Arrays:
    """One file, or a folder of them."""
    x, y, client, part = _held(path)
    if any(label is None or isinstance(label, (list, dict)) or label != label for label in y):
        raise UserError(f"{path} has a y that is no label: expected a number or a text for each x")
    given = None if TEST not in part else np.array(part, np.int8)
    rows = _rows(path, x)
    coding = _coding(rows)
    made = _made(path, rows, coding)
    return labelled(path, _images(made), y, client, {"kind": "leaf", "length": made.shape[-1], **coding}, given)


def rows(path: Path, coding: Coding) -> Arrays:
    """Rows to predict; users may have no `y`."""
    x, y, _, _ = _held(path)
    made = _images(_made(path, _rows(path, x), coding))
    return recognised(path, made, None if set(y) == {None} else y, coding)


def _held(path: Path) -> tuple[list[Any], list[Any], list[str], list[int | None]]:
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
                labels = own.get("y", [None] * len(own["x"]))
                if len(own["x"]) != len(labels):
                    raise ValueError(f"user {user!r} has {len(own['x'])} x and {len(labels)} y")
                x += own["x"]
                y += labels
                client += [str(user)] * len(labels)
                part += [of] * len(labels)
    if not x:
        raise UserError(f"{path} is empty: {_REMEDY}")
    return x, y, client, part


def _rows(path: Path, x: Sequence[Any]) -> Sequence[Any]:
    """Texts, or arrays of numbers."""
    if all(isinstance(row, str) for row in x):
        return x
    with reading(path, _EXPECTED):
        rows = [np.asarray(row) for row in x]
        if any(r.ndim == 0 or r.dtype.kind not in "iuf" for r in rows) or len({r.shape[:-1] for r in rows}) > 1:
            raise ValueError("an x is neither a text nor a list of numbers like the others")
    return rows


def _whole(rows: Sequence[Any]) -> bool:
    return all(r.dtype.kind in "iu" for r in rows)


def _coding(rows: Sequence[Any]) -> Coding:
    """Characters are numbered from 1, and so are tokens: 0 is padding."""
    if isinstance(rows[0], str):
        return {"alphabet": list(alphabet(rows))}
    return {"shift": 1 - min(1, *(int(r.min()) for r in rows if r.size))} if _whole(rows) else {}


def _made(path: Path, rows: Sequence[Any], coding: Coding) -> np.ndarray:
    length = coding.get("length")
    with reading(path, _EXPECTED):
        if isinstance(rows[0], str) != ("alphabet" in coding):
            raise ValueError("texts and numbers are not the same to the model")
        if "alphabet" in coding:
            known = alphabet(coding["alphabet"])
            return padded([tokens(row, known) for row in rows], length)
        if "shift" in coding:
            if not _whole(rows):
                raise ValueError("an x is not whole, and the model takes tokens")
            return features(padded([r + coding["shift"] for r in rows], length), path)
        # Numbers in a list are features, each with its place: only signals, a list for each channel, are padded.
        sizes = {r.shape[-1] for r in rows} | ({length} if length else set())
        if rows[0].ndim == 1 and len(sizes) > 1:
            raise ValueError(f"the lists of numbers have {min(sizes)} to {max(sizes)} entries")
        return features(padded([r.astype(np.float32) for r in rows], length), path)


def _images(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, *_IMAGES[x.shape[1]]) if x.dtype.kind == "f" and x.ndim == 2 and x.shape[1] in _IMAGES else x
