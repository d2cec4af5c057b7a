"""What is left of a convolution without the work that changes nothing.

Taps of a kernel that only ever meet padding are left out: a 3×3 kernel on a map of one pixel is its centre. And a side
has a stride only where there are several taps and several results; elsewhere the pixels that count are taken
beforehand. That is faster, and on a CPU it is more: oneDNN, which does PyTorch's convolutions there, gets some of the
others wrong, without an error. With one tap its backward pass may write past its workspace (uxlfoundation/oneDNN issue
6035); with one result it may apply one side's stride to the other; on a side shorter than its stride, or in a volume
shorter than its kernel, gradients of a tap may be whatever was in memory. What padding makes long enough is padded
beforehand.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import has_torch_function_unary

Window = tuple[slice, ...]
Convolution = Callable[..., Tensor]
CONVOLUTIONS: dict[type[nn.modules.conv._ConvNd], Convolution] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


class Live(NamedTuple):
    """What is left of a convolution."""

    window: Window
    """The taps."""
    padding: tuple[int, ...]
    uneven: tuple[int, ...]
    """Padding in the order of `F.pad`, where the convolution's own will not do; then it has none."""
    before: tuple[int, ...]
    points: tuple[Any, ...]
    """The pixels that sides without a stride of their own meet, after padding by `before`."""
    stride: tuple[int, ...]
    taps: int
    pixels: int
    results: int

    def met(self, x: Tensor) -> Tensor:
        """A batch, of which pixels that meet nothing may be gone."""
        x = F.pad(x, self.before) if self.before else x
        return x[self.points] if self.points else x

    def apply(
        self, convolution: Convolution, met: Tensor, weight: Tensor, bias: Tensor | None, dilation: Any, groups: int
    ) -> Tensor:
        """`weight` has the taps of the window."""
        if self.taps == self.results == groups == 1 and _one_pixel(met):
            return pointwise(convolution, met, weight.flatten(1), bias)
        x = F.pad(met, self.uneven) if self.uneven else met
        return convolution(x, weight, bias, self.stride, self.padding, dilation, groups)


def pointwise(convolution: Convolution, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A convolution of one tap, without stride or padding, by a weight (outputs, inputs).

    On one pixel it is a product of matrices, which a CPU does two to eight times as fast by that name.
    """
    taps = (None,) * (x.ndim - 2)
    if _one_pixel(x):
        return F.linear(x.flatten(1), weight, bias)[(..., *taps)]
    return convolution(x, weight[(..., *taps)], bias)


def _one_pixel(x: Tensor) -> bool:
    return x.device.type == "cpu" and prod(x.shape[2:]) == 1


@lru_cache(maxsize=4096)
def live_taps(size: tuple[int, ...], kernel: tuple[int, ...], stride: Any, padding: Any, dilation: Any) -> Live:
    def each(v: Any) -> tuple[int, ...]:
        return (v,) * len(size) if isinstance(v, int) else v

    strides, dilations = each(stride), each(dilation)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if padding == "same":
        pads = [((r - 1) // 2, r // 2) for r in reach]
    else:
        pads = [(p, p) for p in each(0 if padding == "valid" else padding)]
    sides = [_side(*side) for side in zip(size, kernel, strides, pads, dilations, strict=True)]
    points = [s.points for s in sides]
    short_volume = len(size) == 3 and any(n <= r for n, r in zip(size, reach, strict=True))
    uneven = short_volume or any(s.uneven for s in sides)
    return Live(
        tuple(s.window for s in sides),
        tuple(0 if uneven else s.padding[0] for s in sides),
        _padding([s.padding for s in sides]) if uneven else (),
        _padding([s.before for s in sides]),
        (..., *points) if any(p != slice(None) for p in points) else (),
        tuple(s.stride for s in sides),
        prod(s.window.stop - s.window.start for s in sides),
        prod(s.pixels for s in sides),
        prod(s.results for s in sides),
    )


class _Side(NamedTuple):
    window: slice
    stride: int
    padding: tuple[int, int]
    uneven: bool
    before: tuple[int, int]
    points: slice
    pixels: int
    results: int


def _side(n: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int) -> _Side:
    """One side of a convolution: of n pixels."""
    a, b = pads
    results = (n + a + b - dilation * (kernel - 1) - 1) // stride + 1
    met = [j for j in range(kernel) if any(0 <= o * stride - a + j * dilation < n for o in range(results))]
    first, last = (met[0], met[-1]) if met else (0, kernel - 1)
    window, reach = slice(first, last + 1), (last - first) * dilation + 1
    left = a - first * dilation
    right = (results - 1) * stride + reach - n - left
    if stride > 1 and (first == last or results == 1):
        # No step where one pixel is left: its stride in memory would mean nothing, and oneDNN would go by it.
        points = range(0, (results - 1) * stride + reach, stride if results > 1 else 1)
        before = (left, max(right, 0))
        taken = slice(None) if len(points) == n + sum(before) else slice(None, points.stop, points.step)
        return _Side(window, 1, (0, 0), False, before, taken, len(points), results)
    # More on the right is fine as long as it makes no further result: then both sides have the same.
    even = left >= 0 and (n + 2 * left - reach) // stride + 1 == results
    sides = (left, left) if even else (left, right)
    return _Side(window, stride, sides, not even or n < stride, (0, 0), slice(None), n, results)


def _padding(sides: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """In the order of `F.pad`; nothing where there is none."""
    return tuple(n for pair in reversed(sides) for n in pair) if any(map(any, sides)) else ()


def lean(network: nn.Module) -> None:
    """Let a network's convolutions do no more than that on a CPU. A GPU's library needs no such help."""
    for module in network.modules():
        for kind, convolution in CONVOLUTIONS.items():
            # A class that changed the arithmetic keeps its own.
            if isinstance(module, kind) and type(module)._conv_forward is kind._conv_forward:
                vars(module)["_conv_forward"] = partial(_forward, module, convolution)


def _forward(
    module: nn.modules.conv._ConvNd, convolution: Convolution, x: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    how: Any = (module.stride, module.padding, module.dilation)
    batch = x.ndim == len(module.kernel_size) + 2
    # A weight in factors has a way of its own.
    if x.device.type != "cpu" or not batch or module.padding_mode != "zeros" or has_torch_function_unary(weight):
        return type(module)._conv_forward(module, x, weight, bias)
    live = live_taps(x.shape[2:], module.kernel_size, *how)
    every: Window = (slice(None),) * 2
    taps = weight if live.taps == prod(module.kernel_size) else weight[every + live.window]
    return live.apply(convolution, live.met(x), taps, bias, module.dilation, module.groups)
