"""Planned convolutions have the results and gradients of the plain ones, in both layouts and precisions.

oneDNN computes many of the plain ones wrongly; the reference is float64, which PyTorch computes without oneDNN.
"""

import copy
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pa3dfl.engines.multiply_adds import count_of
from pa3dfl.models import Model
from pa3dfl.models.conv import FUNCTIONS, Plan, plan, replace_convolutions

TAPS = {
    # size, kernel, stride, padding, dilation: the taps that read a pixel, and the padding that is left
    "one pixel, its centre": ((1,), (3,), 1, 1, 1, (1, 2), (0,)),
    "two pixels with strides": ((2,), (3,), 2, 1, 1, (1, 3), (0,)),
    "two pixels, all taps": ((2,), (3,), 1, 1, 1, (0, 3), (1,)),
    "the last tap": ((1,), (4,), 4, 3, 1, (3, 4), (0,)),
    "dilated": ((2,), (3,), 1, 2, 2, (1, 2), (0,)),
}


@pytest.mark.parametrize("case", TAPS.values(), ids=TAPS.keys())
def test_taps_that_read_only_padding_are_left_out(case: Any) -> None:
    *how, (first, stop), padding = case
    planned = plan(*how)
    assert planned.window == (slice(first, stop),)
    assert (planned.padding, planned.explicit_padding) == (padding, ())
    assert planned.taps == stop - first


def test_uneven_padding() -> None:
    assert plan((5,), (4,), 1, "same", 1) == Plan((slice(0, 4),), (0,), (1, 2), (), (), (1,), 4, 5, 5)
    assert plan((5, 5), (3, 3), 1, "valid", 1).padding == (0, 0)


def test_a_side_of_one_tap_needs_no_stride() -> None:
    planned = plan((8, 8), (3, 1), 2, (1, 0), 1)
    assert (planned.pixels_read, planned.stride) == ((..., slice(None), slice(None, 7, 2)), (2, 1))
    assert (planned.padding, planned.pad_before, planned.pixels, planned.results) == ((1, 0), (), 32, 16)


def test_with_a_single_tap_pixels_are_selected_first() -> None:
    """No strided 1×1 convolution is left, and factors are applied to a quarter of the pixels."""
    planned = plan((8, 8), (1, 1), 2, 0, 1)
    assert (planned.pixels_read, planned.pixels, planned.results) == (
        (..., slice(None, 7, 2), slice(None, 7, 2)),
        16,
        16,
    )


def test_a_side_of_one_result_needs_no_stride() -> None:
    planned = plan((64, 8), (5, 6), (1, 6), 0, 1)
    assert (planned.pixels_read, planned.stride, planned.pad_before) == (
        (..., slice(None), slice(None, 6, 1)),
        (1, 1),
        (),
    )
    assert (planned.pixels, planned.results) == (64 * 6, 60)
    assert plan((64, 6), (5, 6), (1, 6), 0, 1).pixels_read == (), "all of them are read"


def test_one_pixel_is_selected_without_a_step() -> None:
    """oneDNN would use the step as the stride in memory."""
    planned = plan((6, 3), (1, 1), (1, 6), 0, 1)
    assert planned.pixels_read == (..., slice(None), slice(None, 1, 1))


def test_a_convolution_that_reads_only_padding() -> None:
    planned = plan((1,), (2,), 4, 2, 1)
    assert (planned.window, planned.pad_before, planned.pixels_read) == (
        (slice(0, 2),),
        (2, 0),
        (..., slice(None, 2, 1)),
    )


def test_inputs_shorter_than_stride_or_kernel_are_padded_beforehand() -> None:
    between = plan((1,), (4,), 2, 3, 1)
    assert (between.window, between.explicit_padding) == ((slice(1, 4),), (2, 2)), (
        "what lies between two taps that are used counts"
    )
    assert plan((2, 9, 9), (3, 3, 3), 1, 1, 1).explicit_padding == (1, 1, 1, 1, 1, 1)
    assert plan((4, 9, 9), (3, 3, 3), 1, 1, 1).explicit_padding == ()
    assert plan((2, 9), (3, 3), 1, 1, 1).explicit_padding == ()


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.modules.conv._ConvNd, tuple[int, ...], int]:
    """A convolution, the shape of a batch, and a seed."""
    dims = draw(st.sampled_from([1, 2, 2, 2, 3]))

    def each(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(dims))

    groups = draw(st.sampled_from([1, 1, 2]))
    inputs, outputs = (groups * draw(st.integers(1, n)) for n in (4, 8))
    kernel, stride, padding, dilation, size = each(1, 6), each(1, 4), each(0, 3), each(1, 2), each(1, 8)
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    assume(all(p <= r < n + 2 * p for n, p, r in zip(size, padding, reach, strict=True)))
    layer = list(FUNCTIONS)[dims - 1](inputs, outputs, kernel, stride, padding, dilation, groups)  # type: ignore[arg-type]
    return layer, (draw(st.integers(1, 5)), inputs, *size), draw(st.integers(0, 10**6))


def laid_out(t: Tensor, channels_last: bool) -> Tensor:
    """With the strides of that layout, even where one channel or one pixel would leave them open."""
    order = [0, *range(2, t.ndim), 1] if channels_last else [*range(t.ndim)]
    strides, stride = [0] * t.ndim, 1
    for axis in reversed(order):
        strides[axis], stride = stride, stride * t.shape[axis]
    return torch.empty_strided(t.shape, strides, dtype=t.dtype).copy_(t).requires_grad_()


def results(layer: nn.Module, x: Tensor, direction: Tensor | None) -> tuple[Tensor, ...]:
    """The result, and the gradients of a projection of it by batch and parameters."""
    y = layer(x)
    return y.detach(), *torch.autograd.grad(y, (x, *layer.parameters()), direction)


@given(layers(), st.booleans(), st.sampled_from([(torch.float32, 1e-4), (torch.bfloat16, 0.03)]))
@settings(max_examples=300, deadline=None)
def test_a_planned_convolution_equals_the_original(case: Any, channels_last: bool, precision: Any) -> None:
    layer, shape, seed = case
    dtype, tolerance = precision
    g = torch.Generator().manual_seed(seed)
    for p in layer.parameters():
        p.data = torch.randn(p.shape, generator=g).to(dtype)
    x = torch.randn(shape, generator=g).to(dtype)
    reference = copy.deepcopy(layer).double()
    layer.weight.data = laid_out(layer.weight.detach(), channels_last).detach()
    replace_convolutions(layer)
    lain, wide = laid_out(x, channels_last), laid_out(x.double(), False)
    direction = torch.randn(reference(wide).shape, generator=g).to(dtype)
    for result, expected in zip(
        results(layer, lain, direction), results(reference, wide, direction.double()), strict=True
    ):
        assert result.shape == expected.shape
        assert (result - expected).abs().max() <= tolerance * max(1.0, float(expected.abs().max()))


def test_taps_that_were_left_out_have_no_gradient() -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1)
    replace_convolutions(layer)
    layer(torch.randn(4, 2, 1, 1)).sum().backward()
    gradient = layer.weight.grad
    assert gradient is not None
    assert torch.count_nonzero(gradient[..., 1, 1]) == 6
    assert torch.count_nonzero(gradient) == 6


@pytest.mark.parametrize("padding", [0, 1])
def test_one_tap_on_one_pixel(padding: int) -> None:
    """With padding there are more results than that one."""
    layer = nn.Conv2d(2, 3, 1, padding=padding)
    x = torch.randn(4, 2, 1, 1)
    exact = layer(x)
    replace_convolutions(layer)
    torch.testing.assert_close(layer(x), exact)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    product = torch.ops.aten.addmm in counter.get_flop_counts()["Global"]
    assert product == (padding == 0), "of matrices: no convolution"


def test_on_other_devices_no_taps_are_left_out() -> None:
    """Costs are counted on tensors without contents, by the paper's convention: with all taps."""
    for device, taps in (("cpu", 1), ("meta", 9)):
        layer = nn.Conv2d(2, 3, 3, padding=1, device=device)
        replace_convolutions(layer)
        x = torch.ones(4, 2, 1, 1, device=device)
        assert count_of(lambda layer=layer, x=x: layer(x)) == taps * 4 * 2 * 3


class Doubled(nn.Conv2d):
    """A user's own arithmetic."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, 2 * weight, bias, self.stride, self.padding)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Doubled(2, 3, 3, 2, padding=1), (4, 2, 1, 1)),
        (nn.Conv2d(2, 3, 3, 2, padding=1, padding_mode="circular"), (4, 2, 2, 2)),
        (nn.Conv2d(2, 3, 3, 2, padding=1), (2, 1, 1)),
    ],
    ids=["arithmetic of its own", "another padding", "no batch"],
)
def test_other_convolutions_stay_as_they_are(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    before = layer(x)
    replace_convolutions(layer)
    assert torch.equal(layer(x), before)


def sensors(width: float, num_classes: int = 4) -> nn.Module:
    """Six sensors, over time."""
    c = int(32 * width)
    first = nn.Conv2d(1, c, (5, 6), stride=(1, 6))
    return nn.Sequential(first, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, num_classes))


@pytest.mark.parametrize("width", [Fraction(1), Fraction(1, 4)], ids=str)
def test_networks_use_planned_convolutions(width: Fraction) -> None:
    """In bfloat16 and with channels last PyTorch alone is off by the size of the results themselves."""
    model = Model(sensors, "sensors", (1, 64, 6), 4)
    params = {k: v.to(torch.bfloat16) for k, v in model.init(width, 0).items()}
    x = laid_out(torch.randn(8, 1, 64, 6).to(torch.bfloat16), True)
    exact = nn.Sequential(*sensors(float(width)))
    exact.load_state_dict(params)
    torch.testing.assert_close(model(params, x, width).double(), exact.double()(x.double()), rtol=0, atol=0.02)


def test_a_network_leaves_taps_out_on_every_processor() -> None:
    """Whether or not its library has those faults: a 3×3 kernel on one pixel, then a head."""

    def tiny(width: float, num_classes: int = 4) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, int(8 * width), 3, 2, 1), nn.Flatten(), nn.Linear(int(8 * width), num_classes)
        )

    model = Model(tiny, "tiny", (2, 1, 1), 4)
    half = Fraction(1, 2)
    params = model.init(half, 0)
    x = torch.ones(5, 2, 1, 1)
    assert count_of(lambda: model(params, x, half)) == 5 * (2 * 4 + 4 * 4)
    assert count_of(lambda: model.features(params, x, half)) == 5 * 2 * 4
