"""One decoder, and how what its clients hold lies in memory."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Decoder:
    weight: Tensor  # (n, h)
    bias: Tensor  # (n)
    mix: Tensor  # (m, h), of m clients
    shape: Shape  # of an output, n entries
    own: list[Tensor]  # what each client holds of its own

    @cached_property
    def folded(self) -> "Fold | None":
        return fold(self.shape, tuple([t.shape for t in self.own]))


@dataclass(frozen=True)
class Fold:
    """An output seen as (outer, inner, columns): client i holds all inner rows of its leading outer[i], columns[i]."""

    full: tuple[int, int, int]
    outer: list[int]
    columns: list[int]


@lru_cache(maxsize=256)
def fold(shape: Shape, shapes: tuple[Shape, ...]) -> Fold | None:
    """Axes that nobody prunes join the ones before them; None if that leaves more than two that are pruned."""
    pruned = [axis for axis, size in enumerate(shape) if any(own[axis] != size for own in shapes)]
    last = pruned[-1] if pruned else 0
    columns, rest = math.prod(shape[last:]), math.prod(shape[last + 1 :])
    own_columns = [own[last] * rest for own in shapes]
    if len(pruned) <= 1:
        return Fold((1, math.prod(shape[:last]), columns), [1] * len(shapes), own_columns)
    first = pruned[0]
    if len(pruned) > 2 or math.prod(shape[:first]) > 1:
        return None
    inner = math.prod(shape[first + 1 : last])
    return Fold((shape[first], inner, columns), [own[first] for own in shapes], own_columns)
