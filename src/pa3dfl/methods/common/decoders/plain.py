"""Decoders by PyTorch's operations. Only one part's outputs exist in full at a time, and its gradient never does."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.tree import leading
from pa3dfl.methods.common.decoders.decoder import Decoder, Held

T = TypeVar("T")

# Rows of a weight that stay in a CPU's cache from one product to the next.
CACHED_ROWS = 2**14


def decode(decoders: list[Decoder], clients: list[Held]) -> None:
    """Write the decoded entries into the tensors that clients hold."""

    def one(part: Decoder, own: list[Tensor]) -> None:
        torch._foreach_copy_(own, _leading(part, own, F.linear(part.mix, part.weight, part.bias)))

    _all_parts(one, decoders, clients)


def learn(decoders: list[Decoder], clients: list[Held], pace: float) -> tuple[Tensor, Tensor]:
    """(W, b) += pace · Σ error·∂output/∂(W, b), where error = held − decoded overwrites the held tensors.

    Returns error·∂output/∂mix, (decoders, m, h), and the squared norm of the sums.
    """

    def one(part: Decoder, own: list[Tensor]) -> tuple[Tensor, Tensor]:
        torch._foreach_sub_(own, _leading(part, own, F.linear(part.mix, part.weight, part.bias)))
        error = _padded(part, own)
        slope = error @ part.weight
        # ‖Σ_i error_i e_iᵀ‖² + ‖Σ_i error_i‖², from products of pairs.
        square = ((error @ error.T) * (part.mix @ part.mix.T + 1)).sum()
        _step(part, error, pace)
        return slope, square

    slopes, squares = [torch.zeros_like(d.mix) for d in decoders], decoders[0].mix.new_zeros(())
    for i, who, (slope, square) in _all_parts(one, decoders, clients):
        torch._foreach_add_([slopes[i][c] for c in who], list(slope.unbind()))
        squares += square
    return torch.stack(slopes), squares


def step(decoders: list[Decoder], clients: list[Held], pace: float) -> None:
    """The step of `learn`, where the held tensors already contain the errors."""
    _all_parts(lambda part, own: _step(part, _padded(part, own), pace), decoders, clients)


def _all_parts(
    work: Callable[[Decoder, list[Tensor]], T], decoders: list[Decoder], clients: list[Held]
) -> list[tuple[int, list[int], T]]:
    """The result of `work` for every part, in order, with the index of its decoder and the clients that hold it.

    On a CPU each core works on parts of its own. If cores shared a part, they would have to wait for each other after
    every product, which on a busy machine takes several times as long as the products.
    """
    parts = [
        (i, part, own, who)
        for i, d in enumerate(decoders)
        for part, own, who in _parts(d, [held.tensors[i] for held in clients])
    ]

    def one(part: tuple[int, Decoder, list[Tensor], list[int]]) -> tuple[int, list[int], T]:
        i, d, own, who = part
        return i, who, work(d, own)

    cores, weight = torch.get_num_threads(), decoders[0].weight
    # The mode of tensors without contents (`cost`) exists in one thread only.
    if cores == 1 or len(parts) == len(decoders) or weight.device.type != "cpu" or type(weight) is not Tensor:
        return [one(part) for part in parts]
    with ThreadPoolExecutor(cores, initializer=_use_one_core) as pool:
        done = list(pool.map(one, parts))
    torch.set_num_threads(cores)  # the pool's threads have changed the default of new threads
    return done


def _use_one_core() -> None:
    torch.get_num_threads()  # sets this thread's count, which must exist before it can be changed
    torch.set_num_threads(1)


def _parts(d: Decoder, own: list[Tensor]) -> Iterator[tuple[Decoder, list[Tensor], list[int]]]:
    """The decoder, split along the leading axes of its outputs: each part, its held tensors, and their clients.

    On a CPU a part is small enough for the cache, so that each product reads what the one before has loaded. Parts that
    no client holds are left out.
    """
    if len(d.weight) <= CACHED_ROWS or d.weight.device.type != "cpu":
        yield d, own, list(range(len(own)))
        return
    inner = len(d.weight) // d.shape[0]
    size = max(1, CACHED_ROWS // inner)
    for at in range(0, d.shape[0], size):
        who = [i for i, held in enumerate(own) if len(held) > at]
        if not who:
            return
        rows, shape = slice(at * inner, (at + size) * inner), (min(size, d.shape[0] - at), *d.shape[1:])
        held = [own[i][at : at + size] for i in who]
        if size == 1:
            shape, held = shape[1:], [t[0] for t in held]
        for part, theirs, some in _parts(Decoder(d.weight[rows], d.bias[rows], d.mix[who], shape), held):
            yield part, theirs, [who[i] for i in some]


def _step(d: Decoder, error: Tensor, pace: float) -> None:
    d.weight.addmm_(error.T, d.mix, alpha=pace)
    d.bias.add_(error.sum(0), alpha=pace)


def _leading(d: Decoder, own: list[Tensor], full: Tensor) -> list[Tensor]:
    """Views of the clients' outputs, (m, n): the entries that each client holds."""
    rows = full.view(-1, *d.shape).unbind()
    return [leading(row, held.shape) for row, held in zip(rows, own, strict=True)]


def _padded(d: Decoder, own: list[Tensor]) -> Tensor:
    """The held tensors at full size, (m, n), with zeros in place of pruned entries."""
    full = d.weight.new_zeros(len(own), len(d.weight))
    torch._foreach_copy_(_leading(d, own, full), own)
    return full
