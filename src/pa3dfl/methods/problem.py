"""What a method may know: the problem (which model, which arithmetic), and the task (whose data, how it is trained)."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction

import torch

from pa3dfl.core.randomness import key
from pa3dfl.core.tree import Tree
from pa3dfl.data import FederatedData
from pa3dfl.models import Model


@dataclass(frozen=True)
class Client:
    """Public facts about a client: its capacity r, its width p (set by the method) and its number of training rows."""

    id: int
    r: Fraction
    width: Fraction
    n: int
    name: str = ""
    """What the data calls it; in a deployment, that of its node."""


@dataclass(frozen=True)
class LocalTraining:
    """The settings of local training. All methods share them, so that their results can be compared."""

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
class Problem:
    """A model, the seed of its parameters, and the arithmetic it runs in: enough to predict and to count."""

    model: Model
    p_min: Fraction
    seed: int
    device: torch.device
    _: KW_ONLY
    dtype: torch.dtype = torch.float32
    """The type of weights, and of all arithmetic unless `compute` is set."""
    compute: torch.dtype | None = None
    """The type of the networks' products, forward and backward, where it is narrower than that of the weights."""

    def arithmetic(self) -> AbstractContextManager[object]:
        """The context in which networks run."""
        if self.compute is None:
            return nullcontext()
        # No cache: a step uses each weight once, and a recorded step must not read a weight from the cache.
        return torch.autocast(self.device.type, self.compute, cache_enabled=False)

    def initial(self, width: Fraction = Fraction(1), *ids: int) -> Tree:
        """The model's initial parameters at a width. They depend on the seed and on `ids` alone."""
        return self.model.init(width, key(self.seed, "model", *ids))


@dataclass(frozen=True, eq=False)
class Task(Problem):
    """A problem with the clients who solve it, their data, and the settings of local training."""

    data: FederatedData
    clients: list[Client]
    local: LocalTraining
    newcomers: frozenset[int] = frozenset()
    """Ids of the clients that take no part in training, and join after it."""
