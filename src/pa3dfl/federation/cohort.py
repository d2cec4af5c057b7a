"""A round's clients: which indices it samples, who did not answer, the mean of their losses."""

from collections.abc import Sequence
from functools import lru_cache

from pa3dfl.core.randomness import numpy_generator
from pa3dfl.methods import Update
from pa3dfl.methods.problem import Client


@lru_cache(maxsize=1024)
def places(seed: int, rnd: int, n: int, per_round: int) -> tuple[int, ...]:
    """The indices that a round samples among n clients."""
    chosen = numpy_generator(seed, "sample", rnd).choice(n, min(per_round, n), replace=False)
    return tuple(sorted(chosen.tolist()))


def mean_loss(updates: Sequence[Update]) -> float:
    return sum(u.loss for u in updates) / len(updates) if updates else float("nan")


def absent(expected: Sequence[Client], answered: set[int]) -> list[int]:
    return [c.id for c in expected if c.id not in answered]
