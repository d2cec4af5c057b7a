"""A round's clients: which indices it samples, who did not answer, the mean of losses, the error if nobody did."""

from collections.abc import Sequence
from functools import lru_cache

from pa3dfl.core.errors import UserError
from pa3dfl.core.randomness import numpy_generator
from pa3dfl.core.words import counted
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


def no_answer(what: str, clients: Sequence[Client], saved: int) -> UserError:
    """The error where nobody answered, with the number of the last round that is saved."""
    kept = counted(saved, "round is", "rounds are")
    return UserError(f"{what}: none of {counted(len(clients), 'client')} answered; {kept} kept")
