"""Channel-aware decomposition of a layer (paper, equation `eqpad`): θ = Reshape(θ_u θ_v).

A weight with T outputs, S inputs and k taps (k² of them in a square kernel, 1 in a linear layer) is the product of

- `theta_u`, general, shape (R1·k, R2): rows u_1..u_R1, each (k, R2), the same for every width;
- `theta_v`, personal, shape (T/R1, R2, S): blocks v_1..v_{T/R1}, each (R2, S).

Output channel (i, j) = u_i v_j has index c = j·R1 + i, so that dropping the last blocks keeps the leading
channels, and a client of width p holds `theta_v[: pT/R1, :, : pS]`.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from pa3dfl.errors import UserError
from pa3dfl.models import Model

R2_RULES = ("max", "paper")


@dataclass(frozen=True)
class LayerPlan:
    """How one layer is decomposed; `outputs` and `inputs` are those of the full layer."""

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
    """A model taken apart: decomposed layers, the head, and what is neither (biases, norms)."""

    model: Model
    layers: tuple[LayerPlan, ...]
    plain: tuple[str, ...]
    head: dict[str, tuple[int, ...]]

    def v_shapes(self, width: Fraction) -> dict[str, tuple[int, ...]]:
        """Shapes of θ_v of each layer at a width."""
        own = self.model.shapes(width)
        return {layer.name: layer.v_shape(own[f"{layer.name}.weight"]) for layer in self.layers}


def take_apart(model: Model, p_min: Fraction, r2_rule: str = "max", r2_scale: float = 1.0) -> Layout:
    """R1 = T·p_min; R2 = R1 in linear layers, max(S, T, k²) in convolutions.

    The paper prints max(min(S, T), k²) for convolutions (`r2_rule="paper"`), but its efficiency table fits
    only max(S, T, k²). `r2_scale` multiplies R2 of convolutions, as appendix A suggests.
    """
    full, head = model.shapes(Fraction(1)), model.head + "."
    layers = []
    for name in model.layers:
        T, S, *kernel = full[f"{name}.weight"]
        if (T * p_min).denominator != 1:
            raise UserError(
                f"layer {name!r} has {T} outputs, and {T} × {p_min} = {float(T * p_min):g} is not whole: make it "
                f"a multiple of {p_min.denominator} or choose a larger p_min"
            )
        R1 = R2 = int(T * p_min)
        if kernel:
            taps = math.prod(kernel)
            widest = max(S, T, taps) if r2_rule == "max" else max(min(S, T), taps)
            R2 = max(1, round(widest * r2_scale))
        layers.append(LayerPlan(name, T, S, tuple(kernel), R1, R2))
    plain = tuple(k for k in full if not model.is_layer(k) and not k.startswith(head))
    heads = {k.removeprefix(head): shape for k, shape in full.items() if k.startswith(head)}
    return Layout(model, tuple(layers), plain, heads)


def recover(layer: LayerPlan, theta_u: Tensor, theta_v: Tensor) -> Tensor:
    """The plain weight of as many outputs and inputs as θ_v holds.

    One product per block gives (T/R1, R1·k, S): memory in the order output, taps, input, which is the
    channels-last layout of a convolution weight, so that nothing is copied.
    """
    blocks = torch.bmm(theta_u.expand(theta_v.shape[0], -1, -1), theta_v)
    t, s = blocks.shape[0] * layer.R1, theta_v.shape[2]
    return blocks.view(t, *layer.kernel, s).movedim(-1, 1)


def off_diagonal(theta_u: Tensor) -> Tensor:
    """‖S − diag S‖² with S = θ_uᵀθ_u (equation `eq_reg`): how far its columns are from orthogonal."""
    gram = theta_u.T @ theta_u
    return gram.square().sum() - gram.diagonal().square().sum()
