"""Keyed randomness: every draw is a function of (seed, purpose, ...), never of what was drawn before.

So every engine, every process and every resumed run draws the same numbers. Draws are made on the
CPU and moved, because generators of different devices give different sequences.
"""

import hashlib

import numpy as np
import torch


def key(seed: int, purpose: str, *ids: int) -> int:
    text = ":".join([str(seed), purpose, *map(str, ids)])
    # 63 bits: torch's generators take a signed 64-bit seed.
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *ids: int) -> torch.Generator:
    return torch.Generator().manual_seed(key(seed, purpose, *ids))


def numpy_generator(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    return np.random.default_rng(key(seed, purpose, *ids))
