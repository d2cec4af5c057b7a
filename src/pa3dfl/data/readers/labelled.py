"""Rows whose labels and owners may have any names."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.core.words import counted
from pa3dfl.data.arrays import TEST, UNKNOWN, Arrays, Coding

LEAST = 10
"""The fewest rows of a client: one to validate, one to test, and the others to train."""


def labelled(
    path: Path, x: np.ndarray, y: Sequence[object], client: Sequence[object] | None, coding: Coding,
    part: np.ndarray | None = None,
) -> Arrays:  # fmt: skip
    """Number labels 0..K-1 and clients 0..N-1, by rank. `coding` is complete but for the labels."""
    names, rank = _ranked(y)
    if len(names) < 2:
        raise UserError(f"{path} has only the label {names[0]!r}: at least 2 classes are needed")
    if 2 * len(names) > len(rank):
        raise UserError(
            f"{path} has {len(names):,} different labels in {len(rank):,} rows: expected classes that rows share, such "
            "as a category or a rounded number"
        )
    if part is not None and (unknown := set(rank[part == TEST]) - set(rank[part != TEST])):
        raise UserError(
            f"{path} has the unknown label {names[min(unknown)]!r}: it is in test rows and in no training row; "
            "remove those rows"
        )
    arrays = Arrays(x, rank, len(names), part=part, coding={**coding, "labels": names})
    if client is None:
        return arrays
    owners, owner = _ranked(client)
    return replace(arrays, client=owner, names=tuple(map(str, owners)))


def recognised(path: Path, x: np.ndarray, y: Sequence[object] | None, coding: Coding) -> Arrays:
    """Rows for a trained model, without labels or with labels that it knows."""
    place = {v: i for i, v in enumerate(coding["labels"])}
    for label in y or ():
        if label not in place:
            raise UserError(
                f"{path} has the label {label!r}, which the model does not know: expected "
                f"{', '.join(map(str, place))}, or no labels"
            )
    numbers = np.full(len(x), UNKNOWN) if y is None else np.array([place[v] for v in y], np.int64)
    return Arrays(x, numbers, len(place), coding=coding)


def enough(arrays: Arrays, path: Path, small: str) -> Arrays:
    """Refuse clients with few rows, or leave them out."""
    if arrays.client is None:
        return arrays
    rows = np.bincount(arrays.client, minlength=len(arrays.names))
    few = np.flatnonzero(rows < LEAST)
    if not len(few):
        return arrays
    if small == "refuse":
        first = f"client {arrays.names[few[0]]!r} has {counted(rows[few[0]], 'row')}"
        others = f" ({len(few)} of {len(rows)} clients have too few)" if len(few) > 1 else ""
        raise UserError(
            f"{path}: {first}{others}, and each needs at least {LEAST}; add rows, or say --small-clients leave-out"
        )
    if len(few) == len(rows):
        raise UserError(f"{path}: none of {counted(len(rows), 'client')} has {LEAST} rows: add rows")
    return of_clients(arrays, rows >= LEAST)


def of_clients(arrays: Arrays, chosen: np.ndarray) -> Arrays:
    """The rows of some of the clients, who are numbered anew; `chosen` says for each client whether it is one."""
    assert arrays.client is not None
    mine = chosen[arrays.client]
    kept, client = np.unique(arrays.client[mine], return_inverse=True)
    part = None if arrays.part is None else arrays.part[mine]
    names = tuple(arrays.names[i] for i in kept)
    return replace(arrays, x=arrays.x[mine], y=arrays.y[mine], client=client.astype(np.int64), names=names, part=part)


def _ranked(values: Sequence[object]) -> tuple[list[object], np.ndarray]:
    """The distinct values in order, numbers before texts, and the index of each value."""
    names = sorted(set(values), key=lambda v: (isinstance(v, str), v))
    place = {v: i for i, v in enumerate(names)}
    return names, np.array([place[v] for v in values], np.int64)
