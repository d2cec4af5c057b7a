"""Convolutions that oneDNN computes wrongly, replaced by equivalent ones.

oneDNN does PyTorch's convolutions on a CPU. Some of them it gets wrong, without an error:

- With one tap and a stride its backward pass may write past its workspace (uxlfoundation/oneDNN issue 6035).
- With one result on a side it may apply the stride of the other side.
- On a side shorter than its stride, or in a volume shorter than its kernel, gradients may be whatever was in memory.

So a side has a stride only where it has several taps and several results; elsewhere the pixels that are read are
selected beforehand. A side that is too short is padded beforehand.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from pa3dfl.models.conv.padding import Trimmed, Window, both_sides, trim
from pa3dfl.models.conv.pixel import Function, one_pixel, pointwise


class Plan(NamedTuple):
    """How a convolution is computed: `apply(function, select(x), …)`."""

    window: Window
    padding: tuple[int, ...]
    explicit_padding: tuple[int, ...]
    """Padding in the order of `F.pad`, where the convolution's own does not suffice; then `padding` is zero."""
    pad_before: tuple[int, ...]
    """Padding before pixels are selected."""
    pixels_read: tuple[Any, ...]
    """The index of the pixels that are read on sides whose stride is taken away; empty: all."""
    stride: tuple[int, ...]
    taps: int
    pixels: int
    results: int

    def select(self, x: Tensor) -> Tensor:
        """The pixels of a batch that the convolution reads."""
        x = F.pad(x, self.pad_before) if self.pad_before else x
        return x[self.pixels_read] if self.pixels_read else x

    def apply(
        self, function: Function, selected: Tensor, weight: Tensor, bias: Tensor | None, dilation: Any, groups: int
    ) -> Tensor:
        """`weight` has the taps of the window."""
        if self.taps == self.results == groups == 1 and one_pixel(selected):
            return pointwise(function, selected, weight.flatten(1), bias)
        x = F.pad(selected, self.explicit_padding) if self.explicit_padding else selected
        return function(x, weight, bias, self.stride, self.padding, dilation, groups)


@lru_cache(maxsize=4096)
def plan(size: tuple[int, ...], kernel: tuple[int, ...], stride: Any, padding: Any, dilation: Any) -> Plan:
    def each(v: Any) -> tuple[int, ...]:
        return (v,) * len(size) if isinstance(v, int) else v

    strides, dilations = each(stride), each(dilation)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = both_sides(each(padding), reach)
    trimmed = [trim(*side) for side in zip(size, kernel, strides, pads, dilations, strict=True)]
    sides = [_safe(*side) for side in zip(size, strides, trimmed, strict=True)]
    short_volume = len(size) == 3 and any(n <= r for n, r in zip(size, reach, strict=True))
    explicit = short_volume or any(s.explicit for s in sides)
    read = [s.read for s in sides]
    return Plan(
        tuple(t.window for t in trimmed),
        tuple(0 if explicit else s.padding[0] for s in sides),
        _pad_order([s.padding for s in sides]) if explicit else (),
        _pad_order([s.before for s in sides]),
        (..., *read) if any(r != slice(None) for r in read) else (),
        tuple(s.stride for s in sides),
        prod(t.taps for t in trimmed),
        prod(s.pixels for s in sides),
        prod(t.results for t in trimmed),
    )


class _Side(NamedTuple):
    stride: int
    padding: tuple[int, int]
    explicit: bool
    before: tuple[int, int]
    read: slice
    pixels: int


def _safe(n: int, stride: int, side: Trimmed) -> _Side:
    left, right, results = side.left, side.right, side.results
    if stride > 1 and (side.taps == 1 or results == 1):
        # One pixel is sliced without a step: oneDNN would use the step as its stride in memory.
        read = range(0, (results - 1) * stride + side.reach, stride if results > 1 else 1)
        before = (left, max(right, 0))
        every = len(read) == n + sum(before)
        return _Side(1, (0, 0), False, before, slice(None) if every else slice(None, read.stop, read.step), len(read))
    # The right side may have as much padding as the left one, if that makes no further result.
    even = left >= 0 and (n + 2 * left - side.reach) // stride + 1 == results
    padding = (left, left) if even else (left, right)
    return _Side(stride, padding, not even or n < stride, (0, 0), slice(None), n)


def _pad_order(sides: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """In the order of `F.pad`; empty where there is none."""
    return tuple(n for pair in reversed(sides) for n in pair) if any(map(any, sides)) else ()
