"""Tests whether two methods differ: paired by client and seed, by sign flips."""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from pa3dfl.experiments.reproduce.groups import Row

EXACT = 14
"""Up to this number of differences all signs are tried; beyond it, `DRAWS` random ones."""
DRAWS = 20_000


@dataclass(frozen=True)
class Difference:
    """How much better one method is than another, as a mean over clients, by rule."""

    mean: float
    error: float
    p: float
    seeds: tuple[float, ...]
    """The mean difference of each seed."""

    @property
    def verdict(self) -> int:
        """1: better, −1: worse, 0: no significant difference (5%)."""
        return 0 if self.p > 0.05 else 1 if self.mean > 0 else -1


def difference(a: Row, b: Row, rule: str) -> Difference | None:
    """a − b over the clients of the seeds that both have; None if there are no pairs."""
    other = {r["seed"]: r["clients"].get(rule) for r in b.runs}
    pairs = [(r["clients"].get(rule), other.get(r["seed"])) for r in a.runs]
    each = [np.subtract(x, y) for x, y in pairs if x and y and len(x) == len(y)]
    if not each:
        return None
    all_of_them = np.concatenate(each)
    spread = float(all_of_them.std(ddof=1)) if len(all_of_them) > 1 else math.nan
    return Difference(
        float(all_of_them.mean()),
        spread / math.sqrt(len(all_of_them)),
        sign_flip(all_of_them),
        tuple(float(d.mean()) for d in each),
    )


def sign_flip(differences: np.ndarray) -> float:
    """Two-sided p of a mean of zero: how often random signs give a mean as far from zero."""
    d = np.asarray(differences, dtype=float)
    d = d[d != 0]
    if len(d) == 0:
        return 1.0
    bar = abs(d.sum()) * (1 - 1e-12)
    if len(d) <= EXACT:
        sums = [abs(np.dot(signs, d)) for signs in itertools.product((1, -1), repeat=len(d))]
        return float(np.mean(np.array(sums) >= bar))
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(DRAWS // 1000):
        hits += int((np.abs(rng.choice((-1.0, 1.0), (1000, len(d))) @ d) >= bar).sum())
    return (hits + 1) / (DRAWS + 1)
