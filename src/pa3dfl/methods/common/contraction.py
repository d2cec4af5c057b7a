"""Weights in factors, which a layer applies to a batch in the order with fewer multiply-adds.

A layer can recover the plain weight first, or apply one factor after the other. Shapes alone decide which is cheaper.
Both orders leave out kernel positions that read only padding (`models/conv`).
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from pa3dfl.models.conv import FUNCTIONS, Window, plan, pointwise

ORDERS = ("auto", "recover", "factors")
Apply = Callable[[Tensor, Tensor], Tensor]
"""A layer as a function of a batch and a weight: with its stride, padding and dilation, without its bias."""
_NOTHING = torch.empty(0, device="meta")


class Factored(Tensor):
    """Factors in the place of a layer's weight.

    Convolutions and linear layers apply the factors by `order`. Every other function gets the recovered weight, so that
    a network may use its weights in any way.
    """

    order: str
    shape_of: tuple[int, ...]
    """The weight's shape; the attribute `shape` would recover the weight first."""

    def __new__(cls, order: str, shape: tuple[int, ...]) -> Self:
        made: Self = Tensor._make_subclass(cls, _NOTHING)
        made.order, made.shape_of = order, shape
        return made

    @abstractmethod
    def recover(self, window: Window = ()) -> Tensor:
        """The plain weight, with the taps in a window of the kernel."""

    @abstractmethod
    def in_turn(self, x: Tensor, window: Window, spatial: Apply, pointwise: Apply) -> Tensor:
        """Apply one factor after the other. `pointwise` is the layer with one tap, stride 1 and no padding."""

    def to_recover(self, taps: int) -> int:
        """Multiply-adds to recover `taps` taps, once per batch. Needed for the order "auto"."""
        raise NotImplementedError

    def in_turn_each(self, taps: int, pixels: int, results: int) -> int:
        """Multiply-adds of `in_turn` per sample, from `pixels` to `results` positions. Needed for the order "auto"."""
        raise NotImplementedError

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
            if func in FUNCTIONS.values() and args[0].ndim == len(args[1].shape_of):
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
    planned = plan(input.shape[2:], weight.shape_of[2:], *how)
    input = planned.select(input)

    def spatial(x: Tensor, w: Tensor, b: Tensor | None = None, groups: int = 1) -> Tensor:
        return planned.apply(func, x, w, b, dilation, groups)

    # A grouped convolution has no factored form, because its weight covers only a part of the inputs.
    if groups > 1 or weight.recovery_wins(input.shape[0], planned.taps, planned.pixels, planned.results):
        return spatial(input, weight.recover(planned.window), bias, groups)
    y = weight.in_turn(input, planned.window, spatial, partial(pointwise, func))
    return y if bias is None else y + bias[(...,) + (None,) * len(planned.window)]
