"""Decoders in PyTorch's terms: outputs of one decoder at a time exist in full, its gradient never does."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.decoders.decoder import Decoder
from pa3dfl.tree import leading


def decode(decoders: list[Decoder]) -> None:
    """Overwrites what clients hold with what is decoded for them."""
    for d in decoders:
        torch._foreach_copy_(d.own, _leading(d, F.linear(d.mix, d.weight, d.bias)))


def learn(decoders: list[Decoder], pace: float) -> tuple[Tensor, Tensor]:
    """(W, b) += pace · Σ error·∂output/∂(W, b), where errors, held − decoded, are written over what clients hold.

    Returns error·∂output/∂mix, (decoders, m, h), and the square of the norm of all these sums.
    """
    slopes, squares = [], []
    for d in decoders:
        torch._foreach_sub_(d.own, _leading(d, F.linear(d.mix, d.weight, d.bias)))
        error = _padded(d)
        slopes.append(error @ d.weight)
        # ‖Σ_i error_i e_iᵀ‖² + ‖Σ_i error_i‖², from products of pairs.
        squares.append(((error @ error.T) * (d.mix @ d.mix.T + 1)).sum())
        _step(d, error, pace)
    return torch.stack(slopes), torch.stack(squares).sum()


def step(decoders: list[Decoder], pace: float) -> None:
    """The same step, of errors that are known."""
    for d in decoders:
        _step(d, _padded(d), pace)


def _step(d: Decoder, error: Tensor, pace: float) -> None:
    d.weight.addmm_(error.T, d.mix, alpha=pace)
    d.bias.add_(error.sum(0), alpha=pace)


def _leading(d: Decoder, full: Tensor) -> list[Tensor]:
    """Of the clients' outputs, (m, n), what each of them holds: views."""
    rows = full.view(-1, *d.shape).unbind()
    return [leading(row, own.shape) for row, own in zip(rows, d.own, strict=True)]


def _padded(d: Decoder) -> Tensor:
    """What clients hold at full size, (m, n), zero where an entry was pruned."""
    full = d.weight.new_zeros(len(d.own), len(d.weight))
    torch._foreach_copy_(_leading(d, full), d.own)
    return full
