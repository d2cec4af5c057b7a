"""The decomposition: pruning θ_v keeps the leading slices of the full weight, for every width and layer type."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pa3dfl.core.errors import UserError
from pa3dfl.methods.pa3dfl.decomposition import LayerPlan, off_diagonal, recover, take_apart
from pa3dfl.models import Model, factory_of


def models() -> dict[str, Model]:
    shapes = {"cnn-fashion": ((1, 28, 28), 10), "cnn-cifar100": ((3, 32, 32), 100), "resnet18-gn": ((3, 32, 32), 10)}
    return {k: Model(factory_of(k), k, shape, n, full_features=True) for k, (shape, n) in shapes.items()}


MODELS = models()
KERNELS = [(), (1,), (3,), (1, 1), (3, 3), (5, 3)]


@st.composite
def layers(draw: st.DrawFn) -> tuple[LayerPlan, int, int, int]:
    """A layer, how many blocks and inputs a client keeps of it, and a seed."""
    R1, blocks, S = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 12))
    layer = LayerPlan("layer", R1 * blocks, S, draw(st.sampled_from(KERNELS)), R1, draw(st.integers(1, 8)))
    return layer, draw(st.integers(1, blocks)), draw(st.integers(1, S)), draw(st.integers(0, 10**6))


def factors(layer: LayerPlan, seed: int, dtype: torch.dtype, whole: bool) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = (layer.u_shape, layer.v_shape())
    if whole:
        u, v = (torch.randint(-9, 10, shape, generator=g).to(dtype) for shape in shapes)
    else:
        u, v = (torch.randn(shape, generator=g, dtype=dtype) for shape in shapes)
    return u, v


@given(layers())
@settings(max_examples=200, deadline=None)
def test_pruning_keeps_the_leading_slices_exactly(case: tuple[LayerPlan, int, int, int]) -> None:
    layer, blocks, inputs, seed = case
    u, v = factors(layer, seed, torch.float64, whole=True)
    narrow = recover(layer, u, v[:blocks, :, :inputs])
    assert torch.equal(narrow, recover(layer, u, v)[: blocks * layer.R1, :inputs])


@given(layers())
@settings(max_examples=200, deadline=None)
def test_pruning_keeps_the_leading_slices_in_float32(case: tuple[LayerPlan, int, int, int]) -> None:
    layer, blocks, inputs, seed = case
    u, v = factors(layer, seed, torch.float32, whole=False)
    narrow = recover(layer, u, v[:blocks, :, :inputs])
    full = recover(layer, u, v)
    error = (narrow - full[: blocks * layer.R1, :inputs]).abs().max()
    assert error <= 1e-6 * full.abs().max()


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_of_every_model_at_every_width(name: str) -> None:
    model, p_min = MODELS[name], Fraction(1, 16)
    for layer in take_apart(model, p_min).layers:
        u, v = factors(layer, 0, torch.float64, whole=True)
        full = recover(layer, u, v)
        assert full.shape == model.shapes(Fraction(1))[f"{layer.name}.weight"]
        for i in range(1, 17):
            shape = model.shapes(p_min * i)[f"{layer.name}.weight"]
            j, _, s = layer.v_shape(shape)
            assert torch.equal(recover(layer, u, v[:j, :, :s]), full[: shape[0], : shape[1]])


def test_output_channel_is_a_row_of_u_times_a_block_of_v() -> None:
    """The definition, entry by entry: channel c = j·R1 + i is u_i v_j."""
    layer = LayerPlan("conv", outputs=6, inputs=2, kernel=(3, 3), R1=3, R2=4)
    u, v = factors(layer, 1, torch.float64, whole=True)
    weight = recover(layer, u, v)
    for i in range(3):
        for j in range(2):
            expected = (u[9 * i : 9 * i + 9] @ v[j]).view(3, 3, 2)
            assert torch.equal(weight[j * 3 + i], expected.permute(2, 0, 1))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("max", {"conv1": (4, 64), "conv2": (4, 64), "fc1": (24, 24), "fc2": (12, 12)}),
        ("paper", {"conv1": (4, 25), "conv2": (4, 64), "fc1": (24, 24), "fc2": (12, 12)}),
    ],
)
def test_ranks_of_the_cifar100_network(rule: str, expected: dict[str, tuple[int, int]]) -> None:
    found = {
        layer.name: (layer.R1, layer.R2) for layer in take_apart(MODELS["cnn-cifar100"], Fraction(1, 16), rule).layers
    }
    assert found == expected


def test_scale_touches_convolutions_only() -> None:
    scaled = {
        layer.name: layer.R2 for layer in take_apart(MODELS["cnn-cifar100"], Fraction(1, 16), r2_scale=0.5).layers
    }
    assert scaled == {"conv1": 32, "conv2": 32, "fc1": 24, "fc2": 12}


def test_personal_parameters_of_the_three_models_in_total() -> None:
    """0.76 M, 1.7 M and 26.5 M, from which the sizes of the hyper-networks follow."""
    totals = {
        name: sum(torch.Size(layer.v_shape()).numel() for layer in take_apart(model, Fraction(1, 16)).layers)
        for name, model in MODELS.items()
    }
    assert totals == {"cnn-fashion": 1_704_448, "cnn-cifar100": 756_736, "resnet18-gn": 26_479_616}


def test_a_layer_that_p_min_does_not_divide() -> None:
    with pytest.raises(UserError, match=r"layer 'conv1' has 32 outputs, and 32 × 1/12 = 2.66667 is not whole"):
        take_apart(MODELS["cnn-fashion"], Fraction(1, 12))


def test_overlap_of_columns() -> None:
    assert off_diagonal(torch.eye(3)) == 0
    # Columns (1, 0) and (1, 2): the Gram matrix has 1 off its diagonal, twice.
    columns = torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    assert off_diagonal(columns) == 2
    assert off_diagonal(columns, torch.eye(3), columns) == 4


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_the_slope_of_the_overlap(shape: tuple[int, int]) -> None:
    u = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    gram = u.T @ u
    defined = (gram - gram.diag().diag()).square().sum()
    assert torch.allclose(off_diagonal(u), defined)
    assert torch.autograd.gradcheck(off_diagonal, (u, u.detach().clone().requires_grad_()))
