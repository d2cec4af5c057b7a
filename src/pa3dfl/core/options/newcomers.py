"""Newcomers: which clients take no part in training and join after it."""

import re
from pathlib import Path

from pa3dfl.core.errors import UserError

EXPECTED = "expected a share such as 10%, ids such as 3,17, or a file with ids"


def newcomers(text: str | None, clients: int, seed: int) -> frozenset[int]:
    """The ids that `text` names: a share (10%, drawn by the seed), a list (3,17), or a file with one id a line."""
    if text is None:
        return frozenset()
    given = text.strip()
    if given.endswith("%"):
        return _share(given, clients, seed)
    words = re.split(r"[,\s]+", given if re.fullmatch(r"[\d,\s]+", given) else _read(given))
    ids = [word for word in words if word]
    wrong = [word for word in ids if not word.isdecimal() or int(word) >= clients]
    if wrong or not ids:
        raise UserError(
            f"newcomers {wrong[0] if wrong else repr(text)} is not a client of 0..{clients - 1}: {EXPECTED}"
        )
    chosen = frozenset(map(int, ids))
    if len(chosen) < len(ids):
        raise UserError(f"newcomers {text} names a client twice: name each once")
    return _some_stay(chosen, clients)


def _share(text: str, clients: int, seed: int) -> frozenset[int]:
    from pa3dfl.core.randomness import numpy_generator  # imports PyTorch; --help must not wait for it

    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UserError(f"newcomers {text!r} is not a share between 0% and 100%: {EXPECTED}")
    n = max(1, round(share * clients))
    chosen = numpy_generator(seed, "newcomers").choice(clients, min(n, clients), replace=False)
    return _some_stay(frozenset(chosen.tolist()), clients)


def _some_stay(chosen: frozenset[int], clients: int) -> frozenset[int]:
    if len(chosen) >= clients:
        raise UserError(f"all {clients} clients are newcomers: leave at least one to train with")
    return chosen


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not text"
        raise UserError(f"newcomers {path!r} cannot be read ({reason}): {EXPECTED}") from None
