"""Decoders: each operation by its definition, and that the fused ones do the same."""

import math
from collections.abc import Sequence
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pa3dfl.decoders import Decoder, Shape, fused, plain, suited
from pa3dfl.decoders.decoder import Fold, fold
from pa3dfl.tree import leading

# An output's shape, what its clients hold, and h.
CASES: dict[str, tuple[Shape, list[Shape], int]] = {
    "outputs and inputs pruned": ((4, 3, 100), [(4, 3, 100), (2, 3, 7), (1, 3, 100)], 64),
    "inputs pruned": ((3, 40, 5), [(3, 40, 5), (3, 40, 2)], 64),
    "a linear layer": ((20, 600), [(10, 600), (20, 30)], 20),
    "a kernel": ((5, 2, 3, 4), [(5, 2, 3, 4), (2, 1, 3, 4)], 8),
    "nothing pruned, one client": ((700,), [(700,)], 16),
    "many tiles for each part of a card": ((16, 128, 128), [(16, 128, 128), (8, 128, 64), (1, 128, 8)], 16),
    "many clients": ((16, 9, 8), [(1 + i % 16, 9, 1 + i % 8) for i in range(33)], 32),
}


def fresh(case: str, dtype: torch.dtype, device: str) -> Decoder:
    shape, shapes, h = CASES[case]
    torch.manual_seed(1)
    n, m = math.prod(shape), len(shapes)
    weight, bias, mix = (torch.randn(*size, dtype=dtype).to(device) for size in ((n, h), (n,), (m, h)))
    return Decoder(weight, bias, mix, shape, [torch.zeros(own, dtype=dtype, device=device) for own in shapes])


def check(kernels: ModuleType, case: str, dtype: torch.dtype, device: str, rtol: float) -> None:
    """Against autograd in double precision, on ½‖held − decoded‖²."""

    def close(found: Tensor, wanted: Tensor) -> None:
        wanted = wanted.detach()
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=rtol * float(wanted.abs().max()))

    d = fresh(case, dtype, device)
    params = [t.double().clone().requires_grad_() for t in (d.weight, d.bias, d.mix)]
    full = (params[2] @ params[0].T + params[1]).view(-1, *d.shape)
    kernels.decode([d])
    for own, row in zip(d.own, full, strict=True):
        close(own, leading(row, own.shape))
        # What is decoded counts as exact below: errors are of the size of what clients add.
        row.data[tuple(slice(n) for n in own.shape)] = own.double()
        own += torch.randn_like(own)
    errors = [own.double() - leading(row, own.shape) for own, row in zip(d.own, full, strict=True)]
    loss = sum(((e**2).sum() / 2 for e in errors), full.new_zeros(()))
    of_weight, of_bias, of_mix = (-g for g in torch.autograd.grad(loss, params))
    goal = d.weight.double() + 0.3 * of_weight, d.bias.double() + 0.3 * of_bias
    slopes, squares = kernels.learn([d], 0.3)
    for own, error in zip(d.own, errors, strict=True):
        close(own, error)
    close(slopes, of_mix[None])
    close(squares, of_weight.square().sum() + of_bias.square().sum())
    close(d.weight, goal[0])
    close(d.bias, goal[1])


@pytest.mark.parametrize("case", CASES)
def test_plain(case: str) -> None:
    check(plain, case, torch.float64, "cpu", 1e-12)


def test_a_known_step_can_be_taken_back() -> None:
    d = fresh("a kernel", torch.float64, "cpu")
    before = d.weight.clone(), d.bias.clone()
    plain.learn([d], 0.3)
    assert not torch.equal(d.weight, before[0])
    plain.step([d], -0.3)
    torch.testing.assert_close((d.weight, d.bias), before, rtol=0, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", CASES)
def test_fused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = fresh(case, torch.float32, "cuda")
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    assert suited([decoder]) is plain
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    assert suited([decoder]) is fused
    check(fused, case, torch.float32, "cuda", 1e-2)


def test_what_the_fused_ones_do_not_serve() -> None:
    assert suited([fresh("a kernel", torch.float32, "cpu")]) is plain, "a CPU"
    assert fold((2, 3, 4), ((1, 2, 3),)) is None, "three axes pruned"
    assert fold((2, 3, 4), ((2, 2, 3),)) is None, "two axes pruned, and not the first"


def test_folds_by_hand() -> None:
    assert fold((4, 3, 5), ((4, 3, 5), (2, 3, 1))) == Fold((4, 3, 5), [4, 2], [5, 1])
    assert fold((4, 3, 5, 5), ((2, 1, 5, 5),)) == Fold((4, 1, 75), [2], [25])
    assert fold((4, 3, 5), ((4, 3, 2),)) == Fold((1, 12, 5), [1], [2])
    assert fold((4, 3, 5), ((4, 3, 5),)) == Fold((1, 1, 60), [1], [60])


@given(st.data())
def test_a_fold_finds_what_slicing_finds(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    shapes = data.draw(st.lists(st.tuples(*(st.integers(1, n) for n in shape)), min_size=1, max_size=3))
    folded = fold(shape, tuple(shapes))
    if folded is None:
        assert sum(any(own[axis] < n for own in shapes) for axis, n in enumerate(shape)) > 1
        return
    full = torch.arange(math.prod(shape))
    for own, outer, columns in zip(shapes, folded.outer, folded.columns, strict=True):
        wanted: Sequence[int] = leading(full.view(shape), own).flatten().tolist()
        assert full.view(folded.full)[:outer, :, :columns].flatten().tolist() == wanted
