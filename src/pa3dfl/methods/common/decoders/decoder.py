"""One decoder, and the part of the decoders' outputs that a client holds, with its place in memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

from torch import Tensor

Shape = tuple[int, ...]

# Tensors begin at multiples of this many entries, because fast kernels need aligned addresses.
ALIGNED = 128


@dataclass(frozen=True)
class Decoder:
    weight: Tensor  # (n, h)
    bias: Tensor  # (n)
    mix: Tensor  # (m, h), of m clients
    shape: Shape  # of an output, n entries


class Held:
    """The part of the outputs that a client holds: one tensor per decoder."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.shapes: tuple[Shape, ...] = tuple([t.shape for t in tensors])
        self.like = tensors[0]  # an example of their type and device

    def addresses(self) -> list[int]:
        return [t.data_ptr() for t in self.tensors]

    def dense(self) -> bool:
        return all(t.is_contiguous() for t in self.tensors)


class Unfilled(Held):
    """The same part before it is decoded, in one allocation, because many small ones are slow on a GPU.

    Tensors are made on first access, because making them takes time in which the GPU can already decode.
    """

    def __init__(self, shapes: Sequence[Shape], like: Tensor) -> None:
        self.shapes = tuple(shapes)
        *self._starts, size = _starts(self.shapes)
        self.like = self._memory = like.new_empty(size)

    def addresses(self) -> list[int]:
        first, size = self._memory.data_ptr(), self._memory.element_size()
        return [first + size * start for start in self._starts]

    def dense(self) -> bool:
        return True

    @cached_property
    def tensors(self) -> Sequence[Tensor]:  # type: ignore[override]
        places = zip(self.shapes, self._starts, strict=True)
        return [self._memory.as_strided(shape, _strides(shape), start) for shape, start in places]


@lru_cache(maxsize=256)
def _starts(shapes: tuple[Shape, ...]) -> list[int]:
    """The offsets of tensors of these shapes, and the end of the last one."""
    return list(accumulate([-(-math.prod(shape) // ALIGNED) * ALIGNED for shape in shapes], initial=0))


@lru_cache(maxsize=4096)
def _strides(shape: Shape) -> Shape:
    return tuple([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])


@dataclass(frozen=True)
class Fold:
    """An output as (outer, inner, columns): client i holds the leading outer[i] and columns[i], and all inner rows."""

    full: tuple[int, int, int]
    outer: list[int]
    columns: list[int]


def fold(shape: Shape, shapes: Sequence[Shape]) -> Fold | None:
    """Join each axis that no client prunes with the axis before it; None if more than two pruned axes remain."""
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
