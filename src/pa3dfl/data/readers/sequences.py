"""Sequences of unequal length as one array: zeros at the end are padding, and no token is zero."""

from collections.abc import Mapping, Sequence

import numpy as np


def padded(sequences: Sequence[np.ndarray], length: int | None = None) -> np.ndarray:
    """Sequences along the last axis, each with zeros up to the length, or up to the longest."""
    longest = max(s.shape[-1] for s in sequences)
    if length is not None and longest > length:
        raise ValueError(f"a sequence of {longest} entries, and the model takes {length}")
    longest = length or longest
    out = np.zeros((len(sequences), *sequences[0].shape[:-1], longest), sequences[0].dtype)
    for row, s in zip(out, sequences, strict=True):
        row[..., : s.shape[-1]] = s
    return out


def alphabet(texts: Sequence[str]) -> dict[str, int]:
    """The characters of all texts, sorted and numbered from 1."""
    return {c: i for i, c in enumerate(sorted(set().union(*texts)), 1)}


def tokens(text: str, known: Mapping[str, int]) -> np.ndarray:
    if unknown := sorted(set(text) - known.keys()):
        raise ValueError(f"the character {unknown[0]!r}, which the model does not know")
    return np.array([known[c] for c in text], np.int32)


def windows(text: np.ndarray, context: int, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """For every character after the first `least`: up to `context` characters before it, and itself."""
    ends = np.arange(least, len(text))
    starts = np.maximum(ends - context, 0)
    at = starts[:, None] + np.arange(context)
    x = np.where(at < ends[:, None], text[np.minimum(at, len(text) - 1)], 0)
    return x.astype(np.int32), text[ends].astype(np.int64)


def in_order(rows: int) -> np.ndarray:
    """A text is tested on its end: the first 0.8 of its rows train, the next 0.1 validate."""
    held = min(max(1, rows // 10), rows // 2)
    return np.repeat(np.array([0, 1, 2], np.int8), [rows - 2 * held, held, held])
