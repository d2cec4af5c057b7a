"""Channel-aware decomposition of a layer (paper, equation `eqpad`): θ = Reshape(θ_u θ_v).

A weight with T outputs, S inputs and k taps (k² of them in a square kernel, 1 in a linear layer) is the product of

- `theta_u`, general, shape (R1·k, R2): rows u_1..u_R1, each (k, R2), equal at every width;
- `theta_v`, personal, shape (T/R1, R2, S): blocks v_1..v_{T/R1}, each (R2, S).

Output channel (i, j) = u_i v_j has index c = j·R1 + i. Dropping the last blocks therefore keeps the leading channels:
a client of width p holds `theta_v[: pT/R1, :, : pS]`.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.core.words import counted
from pa3dfl.methods.common.contraction import Apply, Factored
from pa3dfl.models import Model
from pa3dfl.models.conv import Window

R2_RULES = ("max", "paper")


@dataclass(frozen=True)
class LayerPlan:
    """The decomposition of one layer; `outputs` and `inputs` are those of the full layer."""

    name: str
    outputs: int
    inputs: int
    kernel: tuple[int, ...]
    R1: int
    R2: int

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def u_shape(self) -> tuple[int, int]:
        return (self.R1 * self.taps, self.R2)

    def v_shape(self, weight: tuple[int, ...] | None = None) -> tuple[int, int, int]:
        """Shape of θ_v for a (pruned) weight of the given shape, or for the full one."""
        t, s = (weight[0], weight[1]) if weight else (self.outputs, self.inputs)
        return (t // self.R1, self.R2, s)


@dataclass(frozen=True)
class Layout:
    """The decomposition of a model: its decomposed layers, its head, and the others (biases, norms)."""

    model: Model
    layers: tuple[LayerPlan, ...]
    plain: tuple[str, ...]
    head: dict[str, tuple[int, ...]]

    def v_shapes(self, width: Fraction) -> dict[str, tuple[int, ...]]:
        """The shape of each layer's θ_v at a width."""
        own = self.model.shapes(width)
        return {layer.name: layer.v_shape(own[f"{layer.name}.weight"]) for layer in self.layers}

    def personal_shapes(self, width: Fraction, head: str) -> dict[str, tuple[int, ...]]:
        """These shapes and those of the local head, whose names begin with `head`."""
        return self.v_shapes(width) | {head + k: shape for k, shape in self.head_shapes(width).items()}

    def head_shapes(self, width: Fraction) -> dict[str, tuple[int, ...]]:
        return {k: self.model.shapes(width)[f"{self.model.head}.{k}"] for k in self.head}

    def weights(self, u: Tree, v: Tree, order: str = "recover") -> Tree:
        """Weights of the decomposed layers: plain, or as factors that the layers apply by `order`."""
        if order == "recover":
            return {f"{layer.name}.weight": recover(layer, u[layer.name], v[layer.name]) for layer in self.layers}
        return {f"{own.name}.weight": Decomposed(order, own, u[own.name], v[own.name]) for own in self.layers}


def take_apart(model: Model, p_min: Fraction, r2_rule: str = "max", r2_scale: float = 1.0) -> Layout:
    """R1 = T·p_min; R2 = R1 in linear layers, max(S, T, k²) in convolutions.

    The paper prints max(min(S, T), k²) for convolutions (`r2_rule="paper"`), but its efficiency table fits
    only max(S, T, k²). `r2_scale` multiplies R2 of convolutions, as appendix A suggests. A layer whose outputs do not
    shrink with the width, and are no multiple of 1/p_min, stays whole and is averaged: a score for each position has
    one output.
    """
    full, head = model.shapes(Fraction(1)), model.head + "."
    layers = []
    for name in model.layers:
        T, S, *kernel = full[f"{name}.weight"]
        if (T * p_min).denominator != 1:
            if not model.shrinks(name):
                continue
            raise UserError(
                f"layer {name!r} has {counted(T, 'output')}, and {T} × {p_min} = {float(T * p_min):g} is not whole: "
                f"make it a multiple of {p_min.denominator} or choose a larger p_min"
            )
        R1 = R2 = int(T * p_min)
        if kernel:
            taps = math.prod(kernel)
            widest = max(S, T, taps) if r2_rule == "max" else max(min(S, T), taps)
            R2 = max(1, round(widest * r2_scale))
        layers.append(LayerPlan(name, T, S, tuple(kernel), R1, R2))
    decomposed = {f"{layer.name}.weight" for layer in layers}
    plain = tuple(k for k in full if k not in decomposed and not k.startswith(head))
    heads = {k.removeprefix(head): shape for k, shape in full.items() if k.startswith(head)}
    return Layout(model, tuple(layers), plain, heads)


def recover(layer: LayerPlan, theta_u: Tensor, theta_v: Tensor) -> Tensor:
    """The plain weight, with as many outputs and inputs as θ_v holds.

    One product per block gives (T/R1, R1·k, S). In memory this is the order output, taps, input: the channels-last
    layout of a convolution weight, so that no copy is needed.
    """
    return _recover(theta_u, theta_v, layer.kernel)


def _recover(theta_u: Tensor, theta_v: Tensor, kernel: tuple[int, ...]) -> Tensor:
    blocks = torch.bmm(theta_u.expand(theta_v.shape[0], -1, -1), theta_v)
    return blocks.view(-1, *kernel, theta_v.shape[2]).movedim(-1, 1)


class Decomposed(Factored):
    """θ_u and θ_v in the place of a weight.

    Applied by factors, θ_v comes first, as a layer of one tap with T/R1 groups of R2 outputs. All groups share θ_u, so
    they become rows of a batch.
    """

    layer: LayerPlan
    u: Tensor
    v: Tensor

    def __new__(cls, order: str, layer: LayerPlan, u: Tensor, v: Tensor) -> Self:
        made = super().__new__(cls, order, (v.shape[0] * layer.R1, v.shape[2], *layer.kernel))
        made.layer, made.u, made.v = layer, u, v
        return made

    def recover(self, window: Window = ()) -> Tensor:
        kernel = tuple(w.stop - w.start for w in window)
        if not window or kernel == self.layer.kernel:
            return recover(self.layer, self.u, self.v)
        return _recover(self._taps(window).reshape(-1, self.layer.R2), self.v, kernel)

    def in_turn(self, x: Tensor, window: Window, spatial: Apply, pointwise: Apply) -> Tensor:
        groups, R2, _ = self.v.shape
        y = pointwise(x, self.v.flatten(0, 1))
        if not self.layer.kernel:
            return spatial(y.unflatten(-1, (groups, R2)), self.u).flatten(-2)
        y = spatial(y.unflatten(1, (groups, R2)).flatten(0, 1), self._taps(window).movedim(-1, 1))
        joined: Tensor = y.unflatten(0, (-1, groups)).flatten(1, 2)
        return joined

    def to_recover(self, taps: int) -> int:
        return self.layer.R1 * taps * self.v.numel()

    def in_turn_each(self, taps: int, pixels: int, results: int) -> int:
        return pixels * self.v.numel() + results * taps * self.layer.R2 * self.shape_of[0]

    def _taps(self, window: Window) -> Tensor:
        """θ_u as (R1, taps of the window, R2)."""
        return self.u.view(self.layer.R1, *self.layer.kernel, self.layer.R2)[(slice(None), *window)]


def off_diagonal(*factors: Tensor) -> Tensor:
    """Σ ‖S − diag S‖² with S = θ_uᵀθ_u (equation `eq_reg`): 0 if the columns of each θ_u are orthogonal."""
    first, *others = [_Overlap.apply(u) for u in factors]  # type: ignore[no-untyped-call, unused-ignore]
    total: Tensor = sum(others, first)
    return total


class _Overlap(torch.autograd.Function):
    """Has an explicit derivative: autograd's takes three times as many operations, which is a fifth of a small step."""

    @staticmethod
    def forward(ctx: Any, theta_u: Tensor) -> Tensor:
        rows, columns = theta_u.shape
        if columns <= rows:
            off = (theta_u.T @ theta_u).to(theta_u.dtype).fill_diagonal_(0)
            ctx.save_for_backward(theta_u, off)
            return off.square().sum()
        # θ_uθ_uᵀ has the same norm as S and is smaller.
        gram, diagonal = (theta_u @ theta_u.T).to(theta_u.dtype), theta_u.square().sum(0)
        ctx.save_for_backward(theta_u, gram, diagonal)
        return gram.square().sum() - diagonal.square().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """4 θ_u (S − diag S)."""
        theta_u, gram, *diagonal = ctx.saved_tensors
        if diagonal:
            slope = torch.addmm(theta_u * diagonal[0], gram, theta_u, beta=-4, alpha=4)
        else:
            slope = torch.addmm(theta_u, theta_u, gram, beta=0, alpha=4)
        return slope.mul_(gradient)
