"""A weight kept in factors, and applied to a batch in the order that takes fewer multiply-adds.

A layer can recover its weight and then work as usual, or apply one factor after the other: which is cheaper is
known from shapes alone. Either way, taps of a kernel that only ever meet padding are left out: a 3×3 kernel on
a map of one pixel is its centre.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

ORDERS = ("auto", "recover", "factors")
Window = tuple[slice, ...]
Apply = Callable[[Tensor, Tensor], Tensor]
"""What a layer does with a batch and a weight: its stride, padding and dilation, without its bias."""
_NOTHING = torch.empty(0, device="meta")


class Factored(Tensor):
    """Stands where a layer expects its weight.

    Convolutions and linear layers apply it by `order`. To everything else it is the recovered weight, so that
    a network may do with its weights whatever it likes.
    """

    order: str
    shape_of: tuple[int, ...]
    """Of the weight; `shape` would recover it first."""

    def __new__(cls, order: str, shape: tuple[int, ...]) -> Self:
        made: Self = Tensor._make_subclass(cls, _NOTHING)
        made.order, made.shape_of = order, shape
        return made

    @abstractmethod
    def recover(self, window: Window = ()) -> Tensor:
        """The plain weight, of the taps in a window of the kernel."""

    @abstractmethod
    def in_turn(self, x: Tensor, window: Window, spatial: Apply, pointwise: Apply) -> Tensor:
        """One factor after the other; `pointwise` is the same kind of layer with one tap, stride 1 and no padding."""

    @abstractmethod
    def to_recover(self, taps: int) -> int:
        """Multiply-adds of recovering so many taps, once for a batch."""

    @abstractmethod
    def in_turn_each(self, taps: int, pixels: int, results: int) -> int:
        """Multiply-adds of one factor after the other for each sample, from `pixels` to `results` positions."""

    def recovery_wins(self, samples: int, taps: int, pixels: int, results: int) -> bool:
        if self.order != "auto":
            return self.order == "recover"
        recovered = self.to_recover(taps) + samples * results * taps * prod(self.shape_of[:2])
        return recovered <= samples * self.in_turn_each(taps, pixels, results)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if len(args) > 1 and isinstance(args[1], Factored):
            if func == F.linear:
                return _linear(*args, **kwargs)
            if func in (F.conv1d, F.conv2d, F.conv3d) and args[0].ndim == len(args[1].shape_of):
                return _convolve(func, *args, **kwargs)
        args, kwargs = tree_map(lambda a: a.recover() if isinstance(a, Factored) else a, (args, kwargs))
        return func(*args, **kwargs)


def _linear(input: Tensor, weight: Factored, bias: Tensor | None = None) -> Tensor:
    if weight.recovery_wins(prod(input.shape[:-1]), 1, 1, 1):
        return F.linear(input, weight.recover(), bias)
    y = weight.in_turn(input, (), F.linear, F.linear)
    return y if bias is None else y + bias


def _convolve(
    func: Any, input: Tensor, weight: Factored, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    how = [tuple(v) if isinstance(v, list) else v for v in (stride, padding, dilation)]
    live = live_taps(input.shape[2:], weight.shape_of[2:], *how)
    if live.points:
        input = (F.pad(input, live.before) if live.before else input)[live.points]

    def spatial(x: Tensor, w: Tensor, b: Tensor | None = None, groups: int = 1) -> Tensor:
        if live.uneven:
            x = F.pad(x, live.uneven)
        out: Tensor = func(x, w, b, live.stride, live.padding, dilation, groups)
        return out

    def pointwise(x: Tensor, w: Tensor) -> Tensor:
        out: Tensor = func(x, w[(...,) + (None,) * len(live.window)])
        return out

    # A grouped convolution has no factored form: its weight sees a part of the inputs.
    if groups > 1 or weight.recovery_wins(input.shape[0], live.taps, live.pixels, live.results):
        return spatial(input, weight.recover(live.window), bias, groups)
    y = weight.in_turn(input, live.window, spatial, pointwise)
    return y if bias is None else y + bias[(...,) + (None,) * len(live.window)]


class Live(NamedTuple):
    """What is left of a convolution without the taps that only meet padding."""

    window: Window
    padding: tuple[int, ...]
    uneven: tuple[int, ...]
    """Padding in the order of `F.pad`, where it is negative or not the same on both sides; then there is no other."""
    before: tuple[int, ...]
    points: tuple[Any, ...]
    """Where a single tap has a stride: the pixels that it meets, after padding by `before`. Taken beforehand, they need
    no stride: oneDNN's backward pass of a convolution that has a stride along a side of one tap may write past its
    workspace (uxlfoundation/oneDNN issue 6035)."""
    stride: tuple[int, ...]
    taps: int
    pixels: int
    results: int


@lru_cache(maxsize=4096)
def live_taps(size: tuple[int, ...], kernel: tuple[int, ...], stride: Any, padding: Any, dilation: Any) -> Live:
    def each(v: Any) -> tuple[int, ...]:
        return (v,) * len(size) if isinstance(v, int) else v

    strides, dilations = each(stride), each(dilation)
    reach = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    if padding == "same":
        pads = [(r // 2, r - r // 2) for r in reach]
    else:
        pads = [(p, p) for p in each(0 if padding == "valid" else padding)]
    window, sides, results = [], [], []
    for n, k, s, (a, b), d in zip(size, kernel, strides, pads, dilations, strict=True):
        out = (n + a + b - d * (k - 1) - 1) // s + 1
        met = [j for j in range(k) if any(0 <= o * s - a + j * d < n for o in range(out))] or range(k)
        first, last = met[0], met[-1]
        left = a - first * d
        right = (out - 1) * s + (last - first) * d + 1 - n - left
        # More on the right is fine as long as it makes no further result: then both sides have the same.
        even = left >= 0 and (n + 2 * left - (last - first) * d - 1) // s + 1 == out
        window.append(slice(first, last + 1))
        sides.append((left, left if even else right))
        results.append(out)
    single = [w.stop - w.start == 1 and s > 1 for w, s in zip(window, strides, strict=True)]
    points: tuple[Any, ...] = ()
    before: tuple[int, ...] = ()
    if any(single):
        before = _padding([side if one else (0, 0) for side, one in zip(sides, single, strict=True)])
        ends = [(n - 1) * s + 1 for n, s in zip(results, strides, strict=True)]
        steps = zip(single, ends, strides, strict=True)
        points = (..., *(slice(None, end, s) if one else slice(None) for one, end, s in steps))
        sides = [(0, 0) if one else side for side, one in zip(sides, single, strict=True)]
    uneven = any(left != right or left < 0 for left, right in sides)
    return Live(
        tuple(window),
        tuple(0 if uneven else left for left, _ in sides),
        _padding(sides) if uneven else (),
        before,
        points,
        tuple(1 if one else s for one, s in zip(single, strides, strict=True)),
        prod(w.stop - w.start for w in window),
        prod(n if one else whole for n, whole, one in zip(results, size, single, strict=True)),
        prod(results),
    )


def _padding(sides: list[tuple[int, int]]) -> tuple[int, ...]:
    """In the order of `F.pad`; nothing where there is none."""
    return tuple(n for pair in reversed(sides) for n in pair) if any(map(any, sides)) else ()
