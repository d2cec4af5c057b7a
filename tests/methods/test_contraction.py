"""All orders of contraction are the same layer: values and gradients, over strides, paddings, dilations, layouts."""

from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pa3dfl.engines.multiply_adds import count_of
from pa3dfl.methods.common.contraction import ORDERS
from pa3dfl.methods.pa3dfl.decomposition import Decomposed, LayerPlan, recover, take_apart
from pa3dfl.models import Model
from pa3dfl.models.conv import plan

PLAIN = torch.contiguous_format
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@st.composite
def cases(draw: st.DrawFn) -> tuple[LayerPlan, tuple[int, ...], dict[str, Any], bool, int]:
    """A decomposed convolution, the shape of a batch, how it is applied, its layout, and a seed."""
    dims = draw(st.sampled_from([1, 2, 2, 2, 3]))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(dims))
    R1, blocks, S = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    layer = LayerPlan("layer", R1 * blocks, S, kernel, R1, draw(st.integers(1, 5)))
    size = tuple(draw(st.integers(1, 6)) for _ in range(dims))
    how = {
        "stride": tuple(draw(st.integers(1, 3)) for _ in range(dims)),
        "padding": tuple(draw(st.integers(0, 3)) for _ in range(dims)),
        "dilation": tuple(draw(st.integers(1, 2)) for _ in range(dims)),
    }
    reach = zip(size, kernel, how["padding"], how["dilation"], strict=True)
    # Beyond a kernel's own reach padding makes no sense, and PyTorch's convolutions themselves may crash there.
    assume(all(p <= d * (k - 1) and n + 2 * p >= d * (k - 1) + 1 for n, k, p, d in reach))
    return layer, (draw(st.integers(1, 3)), S, *size), how, draw(st.booleans()), draw(st.integers(0, 10**6))


def leaves(layer: LayerPlan, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> list[Tensor]:
    """θ_u, θ_v, a bias and a batch."""
    g = torch.Generator().manual_seed(seed)
    shapes = (layer.u_shape, layer.v_shape(), (layer.outputs,), shape)
    return [torch.randn(s, generator=g, dtype=dtype).requires_grad_() for s in shapes]


def applied(order: str, layer: LayerPlan, given: list[Tensor], how: dict[str, Any], nhwc: bool) -> list[Tensor]:
    """The result and the gradients of a random projection of it; `order` may be "definition"."""
    u, v, bias, x = given
    weight = (
        Decomposed(order, layer, u, v) if order != "definition" else recover(layer, u, v).clone(memory_format=PLAIN)
    )
    batch = x.contiguous(memory_format=torch.channels_last) if nhwc and x.ndim == 4 else x
    y = CONVOLUTIONS[len(layer.kernel)](batch, weight, bias, **how) if layer.kernel else F.linear(x, weight, bias)
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    return [y.detach(), *torch.autograd.grad((y * direction).sum(), given)]


def assert_equal(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= tolerance * max(1.0, float(b.abs().max()))


@given(cases(), st.sampled_from(ORDERS))
@settings(max_examples=150, deadline=None)
def test_every_order_is_the_same_convolution(case: Any, order: str) -> None:
    layer, shape, how, nhwc, seed = case
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        given = leaves(layer, shape, seed, dtype)
        assert_equal(
            applied(order, layer, given, how, nhwc), applied("definition", layer, given, how, False), tolerance
        )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 4, 5)], ids=str)
def test_every_order_is_the_same_linear_layer(shape: tuple[int, ...], order: str) -> None:
    layer = LayerPlan("layer", 6, 5, (), 2, 3)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        given = leaves(layer, shape, 0, dtype)
        assert_equal(applied(order, layer, given, {}, False), applied("definition", layer, given, {}, False), tolerance)


@given(cases(), st.sampled_from(("recover", "factors")))
@settings(max_examples=60, deadline=None)
def test_the_formula_for_multiply_adds_equals_the_count(case: Any, order: str) -> None:
    layer, shape, how, _, seed = case
    u, v, _, x = leaves(layer, shape, seed, torch.float32)
    weight = Decomposed(order, layer, u, v)
    planned = plan(shape[2:], layer.kernel, **how)
    each = planned.results * planned.taps * layer.inputs * layer.outputs
    recovered = weight.to_recover(planned.taps) + shape[0] * each
    in_turn = shape[0] * weight.in_turn_each(planned.taps, planned.pixels, planned.results)
    function = CONVOLUTIONS[len(layer.kernel)]
    assert count_of(lambda: function(x, weight, **how)) == (recovered if order == "recover" else in_turn)
    cheaper = count_of(lambda: function(x, Decomposed("auto", layer, u, v), **how))
    assert cheaper == min(recovered, in_turn)


@pytest.mark.parametrize(
    ("layer", "shape", "millions"),
    [
        # recover-then-convolve; centre tap recovered; centre tap by factors; and the least of them
        (LayerPlan("last stage", 512, 512, (3, 3), 32, 512), (50, 512, 1, 1), (1326, 147, 223, 147)),
        (LayerPlan("fc1", 384, 1600, (), 24, 24), (50, 1600), (45.5, 45.5, 31.2, 31.2)),
    ],
    ids=["last stage of ResNet-18", "fc1 of the CIFAR100 CNN"],
)
def test_multiply_adds_at_full_width(layer: LayerPlan, shape: tuple[int, ...], millions: tuple[float, ...]) -> None:
    meta = torch.device("meta")
    x, u, v = (torch.empty(s, device=meta) for s in (shape, layer.u_shape, layer.v_shape()))

    def counted(order: str) -> int:
        def run() -> Tensor:
            weight = Decomposed(order, layer, u, v) if order else recover(layer, u, v)
            return F.conv2d(x, weight, padding=1) if layer.kernel else F.linear(x, weight)

        return count_of(run)

    found = [counted(order) / 1e6 for order in ("", "recover", "factors", "auto")]
    assert found == pytest.approx(millions, rel=0.005)


class Free(nn.Module):
    """Uses its weights in ways that no layer does."""

    def __init__(self, width: float, num_classes: int = 3) -> None:
        super().__init__()
        w = int(16 * width)
        self.first = nn.Conv2d(2, w, 3, padding="same")
        self.grouped = nn.Conv2d(w, w, 2, groups=2, padding=1, stride=2)
        self.ring = nn.Conv2d(w, w, 3, padding=1, padding_mode="circular")
        self.mix = nn.Linear(w, w)
        self.head = nn.Linear(w, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) + F.conv2d(x, weight=self.first.weight, padding="same")
        x = self.ring(self.grouped(x))
        x = torch.stack([F.conv2d(row, self.ring.weight, None, [1, 1], [2, 2]) for row in x])
        x = self.mix(x.mean((2, 3))) @ self.mix.weight / self.mix.weight.norm()
        return self.head(x + self.first.weight.sum() + len(self.first.weight))


@pytest.mark.parametrize("width", [Fraction(1, 4), Fraction(1)])
def test_other_uses_of_a_weight_recover_it(width: Fraction) -> None:
    model = Model(Free, "free", (2, 6, 6), 3)
    parts = take_apart(model, Fraction(1, 4))
    g = torch.Generator().manual_seed(0)
    u = {own.name: torch.randn(own.u_shape, generator=g, dtype=torch.float64) for own in parts.layers}
    v = {k: torch.randn(shape, generator=g, dtype=torch.float64) for k, shape in parts.v_shapes(width).items()}
    shapes = model.shapes(width)
    plain = {k: torch.randn(shapes[k], generator=g, dtype=torch.float64) for k in parts.plain}
    x = torch.randn(3, 2, 6, 6, generator=g, dtype=torch.float64)
    recovered, *others = (model.features(parts.weights(u, v, o) | plain, x, width) for o in ("recover", *ORDERS))
    for other in others:
        torch.testing.assert_close(other, recovered, rtol=1e-11, atol=1e-9)
