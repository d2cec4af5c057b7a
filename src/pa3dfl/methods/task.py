"""What is to be learned, by whom, under which rules: everything a method may know."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction

import torch

from pa3dfl.data import FederatedData
from pa3dfl.models import Model


@dataclass(frozen=True)
class Client:
    """A client's public facts: its capacity r, the width p that its method gives it, its training rows."""

    id: int
    r: Fraction
    width: Fraction
    n: int


@dataclass(frozen=True)
class LocalTraining:
    """The same for every method, so that none is compared on better terms than another."""

    epochs: int
    batch: int
    lr: float
    lr_decay: float
    weight_decay: float
    clip_norm: float

    def rate(self, rnd: int) -> float:
        """Step size in round `rnd`, counted from 1."""
        return self.lr * self.lr_decay ** (rnd - 1)


@dataclass(frozen=True, eq=False)
class Task:
    model: Model
    data: FederatedData
    clients: list[Client]
    p_min: Fraction
    local: LocalTraining
    seed: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    """Of weights, and of all arithmetic unless `compute` says otherwise."""
    compute: torch.dtype | None = None
    """Of the networks' products, forward and backward, where it is narrower than that of the weights."""

    def arithmetic(self) -> AbstractContextManager[object]:
        """What a network runs under."""
        if self.compute is None:
            return nullcontext()
        # Without the cache: a step uses a weight once, and a recorded step may not find one in it.
        return torch.autocast(self.device.type, self.compute, cache_enabled=False)
