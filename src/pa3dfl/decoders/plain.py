"""Decoders in PyTorch's terms: outputs of one part at a time exist in full, its gradient never does."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.decoders.decoder import Decoder, Held
from pa3dfl.tree import leading

# Rows of a weight: as many as a CPU's caches hold from one product to the next.
AT_HAND = 2**14


def decode(decoders: list[Decoder], clients: list[Held]) -> None:
    """Overwrites what clients hold with what is decoded for them."""
    for d, whole in _each(decoders, clients):
        for part, own, _ in _parts(d, whole):
            torch._foreach_copy_(own, _leading(part, own, F.linear(part.mix, part.weight, part.bias)))


def learn(decoders: list[Decoder], clients: list[Held], pace: float) -> tuple[Tensor, Tensor]:
    """(W, b) += pace · Σ error·∂output/∂(W, b), where errors, held − decoded, are written over what clients hold.

    Returns error·∂output/∂mix, (decoders, m, h), and the square of the norm of all these sums.
    """
    slopes, squares = [torch.zeros_like(d.mix) for d in decoders], decoders[0].mix.new_zeros(())
    for (d, whole), slope in zip(_each(decoders, clients), slopes, strict=True):
        for part, own, who in _parts(d, whole):
            torch._foreach_sub_(own, _leading(part, own, F.linear(part.mix, part.weight, part.bias)))
            error = _padded(part, own)
            torch._foreach_add_([slope[i] for i in who], list((error @ part.weight).unbind()))
            # ‖Σ_i error_i e_iᵀ‖² + ‖Σ_i error_i‖², from products of pairs.
            squares += ((error @ error.T) * (part.mix @ part.mix.T + 1)).sum()
            _step(part, error, pace)
    return torch.stack(slopes), squares


def step(decoders: list[Decoder], clients: list[Held], pace: float) -> None:
    """The same step, of errors that are known."""
    for d, whole in _each(decoders, clients):
        for part, own, _ in _parts(d, whole):
            _step(part, _padded(part, own), pace)


def _each(decoders: list[Decoder], clients: list[Held]) -> Iterator[tuple[Decoder, list[Tensor]]]:
    """Decoders, each with what clients hold of its outputs."""
    for i, d in enumerate(decoders):
        yield d, [held.tensors[i] for held in clients]


def _parts(d: Decoder, own: list[Tensor]) -> Iterator[tuple[Decoder, list[Tensor], list[int]]]:
    """A decoder along its outputs' leading axes, each part with what clients hold of it, and which clients these are.

    On a CPU a part is so small that every product finds at hand what the one before has read, and parts that nobody
    holds are left out.
    """
    if len(d.weight) <= AT_HAND or d.weight.device.type != "cpu":
        yield d, own, list(range(len(own)))
        return
    inner = len(d.weight) // d.shape[0]
    size = max(1, AT_HAND // inner)
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
    """Of the clients' outputs, (m, n), what each of them holds: views."""
    rows = full.view(-1, *d.shape).unbind()
    return [leading(row, held.shape) for row, held in zip(rows, own, strict=True)]


def _padded(d: Decoder, own: list[Tensor]) -> Tensor:
    """What clients hold at full size, (m, n), zero where an entry was pruned."""
    full = d.weight.new_zeros(len(own), len(d.weight))
    torch._foreach_copy_(_leading(d, own, full), own)
    return full
