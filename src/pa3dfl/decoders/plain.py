"""Decoders in PyTorch's terms: outputs of one decoder at a time exist in full, its gradient never does."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.decoders.decoder import Decoder, Held
from pa3dfl.tree import leading


def decode(decoders: list[Decoder], clients: list[Held]) -> None:
    """Overwrites what clients hold with what is decoded for them."""
    for d, own in _each(decoders, clients):
        torch._foreach_copy_(own, _leading(d, own, F.linear(d.mix, d.weight, d.bias)))


def learn(decoders: list[Decoder], clients: list[Held], pace: float) -> tuple[Tensor, Tensor]:
    """(W, b) += pace · Σ error·∂output/∂(W, b), where errors, held − decoded, are written over what clients hold.

    Returns error·∂output/∂mix, (decoders, m, h), and the square of the norm of all these sums.
    """
    slopes, squares = [], []
    for d, own in _each(decoders, clients):
        torch._foreach_sub_(own, _leading(d, own, F.linear(d.mix, d.weight, d.bias)))
        error = _padded(d, own)
        slopes.append(error @ d.weight)
        # ‖Σ_i error_i e_iᵀ‖² + ‖Σ_i error_i‖², from products of pairs.
        squares.append(((error @ error.T) * (d.mix @ d.mix.T + 1)).sum())
        _step(d, error, pace)
    return torch.stack(slopes), torch.stack(squares).sum()


def step(decoders: list[Decoder], clients: list[Held], pace: float) -> None:
    """The same step, of errors that are known."""
    for d, own in _each(decoders, clients):
        _step(d, _padded(d, own), pace)


def _each(decoders: list[Decoder], clients: list[Held]) -> Iterator[tuple[Decoder, list[Tensor]]]:
    """Decoders, each with what clients hold of its outputs."""
    for i, d in enumerate(decoders):
        yield d, [held.tensors[i] for held in clients]


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
