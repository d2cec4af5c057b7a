"""What a submodel holds belongs together, and what is put back lands where it came from."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.methods.common.slicing import (
    columns_per_channel,
    cut,
    entrywise_mean,
    leading_places,
    merge,
    rolling_places,
    window,
)
from pa3dfl.models import Model, factory_of

CPU = torch.device("cpu")
ONE = Fraction(1)


class Perceptron(nn.Module):
    """No convolution; a shortcut that is wider than its outputs."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.first = nn.Linear(64, int(64 * width))
        self.inner = nn.Linear(int(64 * width), int(32 * width))
        self.shortcut = nn.Linear(int(64 * width), int(32 * width))
        self.last = nn.Linear(int(32 * width), 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x.flatten(1)))
        return self.last(F.relu(self.inner(x) + self.shortcut(x)))


class Joined(nn.Module):
    """Average and a half of the channels side by side: no whole number of columns for each channel."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, int(32 * width), 3)
        self.head = nn.Linear(int(48 * width), 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).mean((2, 3))
        return self.head(torch.cat([x, x[:, : x.shape[1] // 2]], 1))


def model_of(name: str) -> Model:
    factory = Perceptron if name == "perceptron" else factory_of(name)
    shape = (3, 32, 32) if name == "cnn-cifar100" else (1, 8, 8)
    return Model(factory, name, shape, 4)


def random_tree(model: Model, width: Fraction = ONE) -> Tree:
    g = torch.Generator().manual_seed(0)
    return {k: 0.1 * torch.randn(s, generator=g, dtype=torch.float64) for k, s in model.shapes(width).items()}


@pytest.mark.parametrize("name", ["cnn-fashion", "cnn-cifar100", "resnet18-gn", "perceptron"])
@pytest.mark.parametrize(("width", "offset"), [(Fraction(1, 4), 5), (Fraction(7, 16), 61)])
def test_outputs_and_inputs_of_a_slice_match(name, width, offset, monkeypatch):
    """In a full model that is zero elsewhere, a slice computes what it computes alone.

    So every input must meet the output that feeds it, through flattening and through shortcuts. Norms over
    channels see the zeros and are reduced to their affine part.
    """
    affine = lambda x, groups, w, b, eps: x * w[:, None, None] + b[:, None, None]  # noqa: E731
    monkeypatch.setattr(F, "group_norm", affine)
    model = model_of(name)
    places = rolling_places(model, width, offset, CPU)
    part = cut(random_tree(model), places)
    assert {k: tuple(v.shape) for k, v in part.items()} == model.shapes(width)
    full = {k: torch.zeros(s, dtype=torch.float64) for k, s in model.shapes(ONE).items()}
    for k, v in part.items():
        full[k][places[k]] = v
    x = torch.randn(3, *model.input_shape, dtype=torch.float64)
    torch.testing.assert_close(model(part, x, width), model(full, x, ONE), rtol=0, atol=1e-12)
    assert model(part, x, width).std() > 0


@pytest.mark.parametrize("name", ["cnn-fashion", "resnet18-gn"])
def test_a_window_at_the_start_is_the_leading_slice_and_the_full_one_is_the_model(name):
    model = model_of(name)
    tree = random_tree(model)
    rolled = cut(tree, rolling_places(model, Fraction(3, 16), 0, CPU))
    leading = cut(tree, leading_places(model, Fraction(3, 16)))
    assert all(torch.equal(v, leading[k]) for k, v in rolled.items())
    for offset in (0, 7, 1000):
        whole = cut(tree, rolling_places(model, ONE, offset, CPU))
        assert all(torch.equal(v, tree[k]) for k, v in whole.items())


def test_windows_cover_every_channel_equally_in_a_full_cycle():
    counts = torch.zeros(48, dtype=torch.long)
    for offset in range(100, 148):
        held = window(48, 9, offset)
        assert held.tolist() == sorted(set(held.tolist()))
        counts[held] += 1
    assert counts.tolist() == [9] * 48


def test_a_window_moves_by_one_and_wraps_around():
    assert window(5, 3, 0).tolist() == [0, 1, 2]
    assert window(5, 3, 1).tolist() == [1, 2, 3]
    assert window(5, 3, 4).tolist() == [0, 1, 4]
    assert window(5, 3, 5).tolist() == [0, 1, 2]


def test_columns_of_a_channel_are_its_pixels():
    assert columns_per_channel(model_of("cnn-fashion")) == {"fc1.weight": (1, 4)}
    assert columns_per_channel(model_of("resnet18-gn")) == {"head.weight": (1, 1)}
    assert columns_per_channel(model_of("perceptron")) == {}
    with pytest.raises(UserError, match="48 inputs from 32 channels"):
        rolling_places(Model(Joined, "joined", (1, 8, 8), 4), Fraction(1, 2), 0, CPU)


def test_entries_are_averaged_over_their_holders():
    old = torch.tensor([[9.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    parts = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 6.0], [5.0, 7.0]])]
    places = [(slice(0, 1), slice(0, 2)), (torch.tensor([[0], [1]]), torch.tensor([0, 2]))]
    got = entrywise_mean(old, parts, places, [1.0, 3.0])
    # (1·1 + 3·3)/4, 2 alone, 6 alone; 5, nobody, 7
    assert got.tolist() == [[2.5, 2.0, 6.0], [5.0, 9.0, 7.0]]
    assert old.tolist() == [[9.0] * 3] * 2


def test_a_weight_of_zero_leaves_a_row_out():
    old = torch.full((3, 2), 9.0)
    parts = [torch.full((3, 2), 1.0), torch.full((3, 2), 4.0)]
    rows = [torch.tensor([[2.0], [0.0], [2.0]]), torch.tensor([[1.0], [0.0], [0.0]])]
    got = entrywise_mean(old, parts, [(slice(0, 3), slice(0, 2))] * 2, rows)
    assert got.tolist() == [[2.0, 2.0], [9.0, 9.0], [1.0, 1.0]]


def test_merging_untouched_slices_changes_nothing():
    model = model_of("cnn-fashion")
    server = random_tree(model)
    places = [rolling_places(model, Fraction(i, 16), 3 * i, CPU) for i in (1, 5, 16)]
    merged = merge(server, [cut(server, p) for p in places], places, [1, 10, 100])
    for k, v in merged.items():
        torch.testing.assert_close(v, server[k], rtol=1e-14, atol=0)
