"""Tensors of a federation: normalisation, augmentation, and draws that follow from keys alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pa3dfl.core.randomness import generator, key, numpy_generator
from pa3dfl.data import Arrays
from pa3dfl.data.federated import FederatedData, crop_and_flip, federate
from pa3dfl.data.partition import Split

CPU = torch.device("cpu")


def federated(x: np.ndarray, name: str = "own.npz", augment: bool = False) -> FederatedData:
    split = Split(np.array([2, 0]), np.array([1]), np.array([3]))
    y = np.arange(len(x), dtype=np.int64)
    return federate(Arrays(x, y, len(x)), name, [split], augment, CPU)


def values(data: FederatedData, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return data.batch(torch.arange(len(data.x)), None, dtype)[0]


@settings(deadline=None, max_examples=50)
@given(
    st.tuples(*[st.integers(1, n) for n in (3, 3, 7, 9)]),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 1)), min_size=3, max_size=3),
    st.sampled_from([torch.uint8, torch.float32]),
)
def test_crop_and_flip_equals_a_loop_over_images(
    shape: tuple[int, ...], crops: list[tuple[int, ...]], dtype: torch.dtype
) -> None:
    n, c, h, w = shape
    x = torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = torch.zeros_like(x)
    for i in range(n):
        dy, dx, flip = crops[i]
        for k in range(c):
            for row in range(h):
                for column in range(w):
                    a, b = row + dy - 4, (w - 1 - column if flip else column) + dx - 4
                    if 0 <= a < h and 0 <= b < w:
                        expected[i, k, row, column] = x[i, k, a, b]
    assert torch.equal(crop_and_flip(x, torch.tensor(crops[:n])), expected)


def test_crop_and_flip_by_hand() -> None:
    x = torch.tensor([[[[1, 2], [3, 4]]]]).expand(4, 1, 2, 2)
    out = crop_and_flip(x, torch.tensor([[4, 4, 0], [4, 4, 1], [5, 3, 0], [0, 8, 1]]))
    assert out[:, 0].tolist() == [[[1, 2], [3, 4]], [[2, 1], [4, 3]], [[0, 3], [0, 0]], [[0, 0], [0, 0]]]


@pytest.mark.parametrize("name", ["fashion-mnist", "fashion-mnist-10k"])
def test_fashion_is_normalised_by_published_statistics(name: str) -> None:
    x = np.zeros((4, 1, 1, 2), np.uint8)
    x[..., 1] = 255
    assert values(federated(x, name))[0].flatten().tolist() == pytest.approx([-0.809915, 2.022946], abs=1e-5)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_normalised_by_channel(name: str) -> None:
    x = np.zeros((4, 3, 1, 2), np.uint8)
    x[..., 1] = 255
    black, white = [-1.989474, -1.984362, -1.704198], [2.059109, 2.130864, 2.112595]
    assert values(federated(x, name))[0, :, 0, 0].tolist() == pytest.approx(black, abs=1e-5)
    assert values(federated(x, name))[0, :, 0, 1].tolist() == pytest.approx(white, abs=1e-5)


def test_other_images_are_normalised_by_their_own_numbers() -> None:
    """More than one block of 10,000 rows, of unequal length."""
    rng = np.random.default_rng(0)
    x = (rng.integers(0, 100, (20_003, 2, 1, 3)) + np.array([0, 100])[:, None, None]).astype(np.uint8)
    data = federated(x)
    assert data.mean is not None
    assert data.std is not None
    assert data.mean.flatten().tolist() == pytest.approx(x.mean((0, 2, 3)), rel=1e-6)
    assert data.std.flatten().tolist() == pytest.approx(x.std((0, 2, 3)), rel=1e-5)
    assert values(data).mean((0, 2, 3)).tolist() == pytest.approx([0, 0], abs=1e-5)
    assert values(data).std((0, 2, 3)).tolist() == pytest.approx([1, 1], abs=1e-4)


def test_a_constant_channel_stays_finite() -> None:
    data = federated(np.full((4, 1, 2, 2), 7, np.uint8))
    assert values(data).abs().max() < 1e-3
    assert data.std is not None
    assert data.std.item() == pytest.approx(0.255)


def test_features_are_not_normalised() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    data = federated(x)
    assert (data.mean, data.std) == (None, None)
    assert torch.equal(values(data, torch.float32), torch.from_numpy(x))
    assert data.input_shape == (3,)


def test_batches_follow_the_rows() -> None:
    x = np.arange(16, dtype=np.uint8).reshape(4, 1, 2, 2)
    data = federated(x, "fashion-mnist")
    assert (data.x.dtype, data.input_shape, data.classes) == (torch.uint8, (1, 2, 2), 4)
    assert {part: data.rows(0, part).tolist() for part in ("train", "val", "test")} == {
        "train": [2, 0],
        "val": [1],
        "test": [3],
    }
    for dtype in (torch.float32, torch.float64):
        inputs, y = data.batch(data.rows(0, "train"), None, dtype)
        assert inputs.dtype == dtype
        assert y.tolist() == [2, 0]
        assert (inputs[:, 0, 0, 0] * 255 * 0.3530 + 255 * 0.2859).tolist() == pytest.approx([8, 0], abs=1e-4)


def test_crops_pad_with_black_before_normalising() -> None:
    data = federated(np.full((4, 1, 2, 2), 255, np.uint8), "fashion-mnist", augment=True)
    inputs, _ = data.batch(torch.tensor([0]), torch.tensor([[4, 5, 0]]), torch.float64)
    assert inputs.flatten().tolist() == pytest.approx([2.022946, -0.809915] * 2, abs=1e-5)


def test_crops_cover_all_shifts_and_both_sides() -> None:
    data = federated(np.zeros((4, 1, 2, 2), np.uint8), augment=True)
    crops = data.draw_crops(2000, generator(0, "crops"))
    assert crops is not None
    assert crops.shape == (2000, 3)
    for column, options in enumerate((9, 9, 2)):
        seen = torch.bincount(crops[:, column])
        assert len(seen) == options
        assert (seen - 2000 / options).abs().max() < 90
    assert not torch.equal(crops[:, 0], crops[:, 1])


def test_without_augmentation_nothing_is_drawn() -> None:
    g = generator(0, "crops")
    before = g.get_state()
    assert federated(np.zeros((4, 1, 2, 2), np.uint8)).draw_crops(9, g) is None
    assert torch.equal(before, g.get_state())


def test_keys_are_the_same_on_every_machine() -> None:
    assert key(0, "capacity") == 7236451814963630625
    assert key(12, "batches", 3, 4) == 8871101340681384409


def test_every_part_of_a_key_changes_the_numbers() -> None:
    keys = [key(*k) for k in ((0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 0, 1), (0, "a", 1, 0))]
    assert len(set(keys)) == 7
    assert all(0 <= k < 2**63 for k in keys)
    assert key(1, "a", 23) != key(1, "a", 2, 3)


def test_draws_do_not_depend_on_earlier_draws() -> None:
    data = federated(np.zeros((4, 1, 2, 2), np.uint8), augment=True)
    first = data.draw_crops(5, generator(0, "crops", 1, 2))
    torch.manual_seed(5)
    data.draw_crops(50, generator(0, "crops", 1, 1))
    second, other = (data.draw_crops(5, generator(0, "crops", 1, i)) for i in (2, 3))
    assert first is not None
    assert second is not None
    assert other is not None
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    a, b = (numpy_generator(3, "sample", rnd).random() for rnd in (1, 2))
    assert numpy_generator(3, "sample", 1).random() == a != b
