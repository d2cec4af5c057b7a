"""Rules that give each client a width, given the widths that the clients can afford."""

from collections.abc import Sequence
from fractions import Fraction


def narrowest(affordable: Sequence[Fraction]) -> list[Fraction]:
    """One width for all clients: the one that the weakest client can afford."""
    return [min(affordable)] * len(affordable)


def multiples(affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
    """For each client the largest affordable multiple of `p_min`."""
    return [p // p_min * p_min for p in affordable]
