"""A tape does with other tensors what was done with those that it saw."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pa3dfl.engines.cpu.tape import Tape

OURS, TWO = torch.tensor([1.0, -2.0, 3.0]), torch.tensor(2)


def pieces(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    first, second, last = x.split(2)  # a list of tensors
    return first * 2, last + y[0], torch.stack([first, second])


def in_place(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = x.clone()
    z.clamp_(min=0.25).add_(y)
    z[1] = 7.0
    return (z,)


def detached(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = x.clone()
    z.detach().add_(y.detach())
    return z, OURS.detach() * y, z.detach()


def constants(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * OURS, x / torch.tensor(3.0), y.masked_fill(y > 0, float("-inf")), y + 1e-30, x.new_zeros(4)


def indices(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    most, where = x.max(1)
    return most, where, y.gather(1, where[:, None])


def types(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.to(torch.bfloat16), (y > 0).sum(), x.double().to(memory_format=torch.contiguous_format)


def derivatives(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    w, b = x[:3].clone().requires_grad_(), y[0].clone().requires_grad_()
    with torch.enable_grad():
        loss = (torch.relu(torch.nn.functional.linear(y, w, b)) ** 2).mean()
    return loss.detach(), *torch.autograd.grad(loss, [w, b])


def pair(seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(5, 3, generator=g), torch.randn(5, 3, generator=g)


@pytest.mark.parametrize(
    "compute", [pieces, in_place, detached, constants, indices, types, derivatives], ids=lambda f: f.__name__
)
def test_a_replay_computes_the_same_from_other_tensors(compute: Callable[..., tuple[Tensor, ...]]) -> None:
    x, y = pair(0)
    with Tape((x, y)) as tape:
        seen = compute(x, y)
    replay = tape.replay(seen)
    for seed in (0, 1):
        expected = compute(*pair(seed))
        for a, b in zip(replay(*pair(seed)), expected, strict=True):
            assert a.dtype == b.dtype
            assert a.stride() == b.stride()
            assert torch.equal(a, b)


@pytest.mark.parametrize("read", [lambda x: float(x.sum()), lambda x: bool((x > 0).all()), lambda x: torch.equal(x, x)])
def test_a_computation_that_reads_values_is_refused(read: Callable[[Tensor], object]) -> None:
    x, y = pair(0)
    with Tape((x, y)) as tape:
        read(x)
        seen = (x + y,)
    with pytest.raises(ValueError, match="reads values"):
        tape.replay(seen)


def test_a_computation_that_draws_random_numbers_is_refused() -> None:
    x, y = pair(0)
    with Tape((x, y)) as tape:
        seen = (torch.nn.functional.dropout(x) + y,)
    with pytest.raises(ValueError, match="draws random numbers"):
        tape.replay(seen)


def test_values_of_constants_may_be_read() -> None:
    x, y = pair(0)
    with Tape((x, y)) as tape:
        seen = (x[: int(TWO)] + 2.5 * y[:2],)
    other = pair(1)
    (again,) = tape.replay(seen)(*other)
    assert torch.equal(again, other[0][:2] + 2.5 * other[1][:2])


def test_a_tape_keeps_no_tensor_alive() -> None:
    x, y = pair(0)
    with Tape((x, y)) as tape:
        z = x + y
        names = len(tape._names)
        z = z * 2
        assert len(tape._names) == names
    (again,) = tape.replay((z,))(*pair(1))
    assert torch.equal(again, sum(pair(1)) * 2)
