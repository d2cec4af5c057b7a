"""Decoders: each operation by its definition, and that the fused ones do the same."""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from types import ModuleType

import emulator
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pa3dfl.core.tree import leading
from pa3dfl.methods.common.decoders import Decoder, Held, Shape, Unfilled, fused, plain, suited
from pa3dfl.methods.common.decoders.decoder import Fold, fold

# h, and of each output its shape and what its clients hold.
CASES: dict[str, tuple[int, list[tuple[Shape, list[Shape]]]]] = {
    "outputs and inputs pruned": (64, [((4, 3, 100), [(4, 3, 100), (2, 3, 7), (1, 3, 100)])]),
    "inputs pruned": (64, [((3, 40, 5), [(3, 40, 5), (3, 40, 2)])]),
    "a linear layer": (32, [((20, 600), [(10, 600), (20, 30)])]),
    "a kernel": (16, [((5, 2, 3, 4), [(5, 2, 3, 4), (2, 1, 3, 4)])]),
    "nothing pruned, one client": (16, [((700,), [(700,)])]),
    "nobody holds the last outputs": (32, [((7, 50), [(3, 50), (2, 20)])]),
    "many tiles for each part of a card": (16, [((16, 256, 256), [(16, 256, 256), (8, 256, 128), (1, 256, 16)])]),
    "many clients": (32, [((16, 9, 8), [(1 + i % 16, 9, 1 + i % 8) for i in range(33)])]),
    "outputs of all sizes": (
        128,
        [((40,), [(40,)] * 9), ((60, 30), [(60 - i, 30 - i) for i in range(9)]), ((33,), [(33,)] * 9)],
    ),
}


def fresh(case: str, dtype: torch.dtype, device: str) -> tuple[list[Decoder], list[Held]]:
    h, outputs = CASES[case]
    torch.manual_seed(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, dtype=dtype).to(device)

    decoders = [Decoder(normal(n := math.prod(s), h), normal(n), normal(len(own), h), s) for s, own in outputs]
    by_client = zip(*(own for _, own in outputs), strict=True)
    return decoders, [Held([torch.zeros(s, dtype=dtype, device=device) for s in shapes]) for shapes in by_client]


def check(kernels: ModuleType, case: str, dtype: torch.dtype, device: str, rtol: float) -> None:
    """Against autograd in double precision, on ½‖held − decoded‖²."""

    def close(found: Tensor, wanted: Tensor) -> None:
        wanted = wanted.detach()
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=rtol * float(wanted.abs().max()))

    decoders, clients = fresh(case, dtype, device)
    kernels.decode(decoders, clients)
    goals = []
    for i, d in enumerate(decoders):
        params = [t.double().clone().requires_grad_() for t in (d.weight, d.bias, d.mix)]
        full = (params[2] @ params[0].T + params[1]).view(-1, *d.shape)
        own = [held.tensors[i] for held in clients]
        for tensor, row in zip(own, full, strict=True):
            close(tensor, leading(row, tensor.shape))
            # What is decoded counts as exact below: errors are of the size of what clients add.
            row.data[tuple(slice(n) for n in tensor.shape)] = tensor.double()
            tensor += torch.randn_like(tensor)
        errors = [tensor.double() - leading(row, tensor.shape) for tensor, row in zip(own, full, strict=True)]
        loss = sum(((e**2).sum() / 2 for e in errors), full.new_zeros(()))
        of_weight, of_bias, of_mix = (-g for g in torch.autograd.grad(loss, params))
        steps = of_weight.square().sum() + of_bias.square().sum()
        goals.append((d.weight.double() + 0.3 * of_weight, d.bias.double() + 0.3 * of_bias, errors, of_mix, steps))
    slopes, squares = kernels.learn(decoders, clients, 0.3)
    for i, (d, (weight, bias, errors, of_mix, _)) in enumerate(zip(decoders, goals, strict=True)):
        close(d.weight, weight)
        close(d.bias, bias)
        close(slopes[i], of_mix)
        for held, error in zip(clients, errors, strict=True):
            close(held.tensors[i], error)
    close(squares, torch.stack([steps for *_, steps in goals]).sum())


def check_nothing_is_learned(case: str, device: str) -> None:
    """Clients return their entries unchanged: the same bits are decoded again."""
    decoders, clients = fresh(case, torch.float32, device)
    before = [d.weight.clone() for d in decoders]
    fused.decode(decoders, clients)
    slopes, squares = fused.learn(decoders, clients, 0.3)
    assert not slopes.any()
    assert not squares
    assert all(torch.equal(d.weight, weight) for d, weight in zip(decoders, before, strict=True))


SMALL = [case for case in CASES if "many tiles" not in case]


IN_PARTS = pytest.mark.parametrize("cached_rows", [1, 30, plain.CACHED_ROWS])


@IN_PARTS
@pytest.mark.parametrize("case", SMALL)
def test_plain_decoders_equal_the_definition(case: str, cached_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "CACHED_ROWS", cached_rows)
    check(plain, case, torch.float64, "cpu", 1e-12)


def test_parts_of_a_decoder_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client holds the third and fourth row of outputs."""
    d = Decoder(torch.arange(4 * 2 * 3.0)[:, None], torch.zeros(4 * 2 * 3), torch.arange(2.0)[:, None], (4, 2, 3))
    own = [torch.zeros(1, 2, 3), torch.zeros(2, 2, 1)]

    def found(cached_rows: int) -> list[tuple[list[float], Shape, list[int], list[Shape]]]:
        monkeypatch.setattr(plain, "CACHED_ROWS", cached_rows)
        parts = list(plain._parts(d, own))
        assert all(part.mix.flatten().tolist() == who for part, _, who in parts)
        return [(p.weight[[0, -1], 0].tolist(), p.shape, who, [tuple(t.shape) for t in held]) for p, held, who in parts]

    assert found(24) == [([0, 23], (4, 2, 3), [0, 1], [(1, 2, 3), (2, 2, 1)])]
    assert found(12) == [([0, 11], (2, 2, 3), [0, 1], [(1, 2, 3), (2, 2, 1)])]
    assert found(6) == [([0, 5], (2, 3), [0, 1], [(2, 3), (2, 1)]), ([6, 11], (2, 3), [1], [(2, 1)])]
    assert found(5) == [
        ([0, 2], (3,), [0, 1], [(3,), (1,)]),
        ([3, 5], (3,), [0, 1], [(3,), (1,)]),
        ([6, 8], (3,), [1], [(1,)]),
        ([9, 11], (3,), [1], [(1,)]),
    ]


@IN_PARTS
def test_a_step_can_be_undone(cached_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "CACHED_ROWS", cached_rows)
    (d,), clients = fresh("a kernel", torch.float64, "cpu")
    before = d.weight.clone(), d.bias.clone()
    plain.learn([d], clients, 0.3)
    assert not torch.equal(d.weight, before[0])
    plain.step([d], clients, -0.3)
    torch.testing.assert_close((d.weight, d.bias), before, rtol=0, atol=1e-12)


@pytest.fixture
def tf32() -> Iterator[None]:
    """TF32 as it was, afterwards: monkeypatch cannot restore an attribute that only `__getattr__` finds."""
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("case", CASES)
def test_fused_kernels_equal_the_definition_on_a_gpu(case: str) -> None:
    given = fresh(case, torch.float32, "cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    assert suited(*given) is plain
    torch.backends.cuda.matmul.allow_tf32 = True
    assert suited(*given) is fused
    check(fused, case, torch.float32, "cuda", 1e-2)
    check_nothing_is_learned(case, "cuda")


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Three blocks that run on a CPU, one after another."""
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.setattr(fused, "_launch", lambda *args: emulator.launch(folder, *args))
    monkeypatch.setattr(fused, "_processors", lambda _: 1)
    monkeypatch.setattr(fused, "BLOCKS_PER_PROCESSOR", 3)
    fused._spans.cache_clear()


@pytest.mark.skipif(not emulator.COMPILER, reason="needs g++")
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("case", SMALL)
def test_fused_kernels_equal_the_definition_in_the_emulator(case: str) -> None:
    check(fused, case, torch.float32, "cpu", 1e-2)
    check_nothing_is_learned(case, "cpu")


def test_cases_that_fused_kernels_do_not_serve() -> None:
    assert suited(*fresh("a kernel", torch.float32, "cpu")) is plain, "a CPU"
    assert fold((2, 3, 4), ((1, 2, 3),)) is None, "three axes pruned"
    assert fold((2, 3, 4), ((2, 2, 3),)) is None, "two axes pruned, and not the first"


def test_unfilled_tensors_do_not_overlap() -> None:
    shapes: list[Shape] = [(3, 5), (), (128,), (7,)]
    unfilled = Unfilled(shapes, torch.empty(0, dtype=torch.float64))
    for i, (tensor, shape, address) in enumerate(zip(unfilled.tensors, shapes, unfilled.addresses(), strict=True)):
        assert tensor.shape == shape
        assert tensor.dtype == torch.float64
        assert tensor.is_contiguous()
        assert tensor.data_ptr() == address
        assert address % 64 == 0
        tensor.fill_(i)
    assert [float(tensor.mean()) for tensor in unfilled.tensors] == [0, 1, 2, 3]
    assert len({tensor.untyped_storage().data_ptr() for tensor in unfilled.tensors}) == 1


def test_folds_by_hand() -> None:
    assert fold((4, 3, 5), ((4, 3, 5), (2, 3, 1))) == Fold((4, 3, 5), [4, 2], [5, 1])
    assert fold((4, 3, 5, 5), ((2, 1, 5, 5),)) == Fold((4, 1, 75), [2], [25])
    assert fold((4, 3, 5), ((4, 3, 2),)) == Fold((1, 12, 5), [1], [2])
    assert fold((4, 3, 5), ((4, 3, 5),)) == Fold((1, 1, 60), [1], [60])


def test_the_table_that_kernels_read() -> None:
    """Inner and columns of each output; address and limits of each client, with unfilled for eight."""
    whole, part = (4, 3, 5), (2, 3, 1)
    planned = fused._planned((whole, (7,)), ((whole, (7,)), (part, (2,))))
    assert planned is not None
    table, rows = planned
    assert table.view("int32").reshape(2, 4 + 2 * 8, 2)[:, 3].tolist() == [[3, 5], [1, 7]]
    assert table.view("int32").reshape(2, 4 + 2 * 8, 2)[:, [5, 7, 9]].tolist() == [
        [[4, 5], [2, 1], [0, 0]],
        [[1, 7], [1, 2], [0, 0]],
    ]
    assert rows == (4 * 3 * 5, 7)
    assert not table[:, [0, 1, 2, 4, 6, 8]].any(), "addresses are filled in later"
    only_small = fused._planned((whole,), ((part,),))
    assert only_small is not None
    assert only_small[1] == (2 * 3 * 5,), "rows that nobody holds are left out"
    assert fused._planned((whole,), (((2, 2, 1),),)) is None, "three axes pruned"


def test_a_gpu_without_kernels_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: object, **options: object) -> None:
        raise RuntimeError("sm_70 is too old\nand more")

    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", fails, raising=False)
    fused._kernels.cache_clear()
    for _ in range(2):
        assert fused._kernels(16, 8, torch.device("cuda", 7)) is None
    fused._kernels.cache_clear()
    assert caplog.messages == ["the hyper-network is slower: no kernels for this GPU (sm_70 is too old)"]


@given(st.data())
def test_a_fold_selects_the_same_entries_as_slicing(data: st.DataObject) -> None:
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
