"""Decoders on a GPU, one pass over the weights for each operation.

A decoder is as large as what it does is simple: h numbers are read for each one it makes. It is as fast as the memory
if nothing but the weight and what clients hold is read or written: no output and no error at full size, no tile of the
weight twice. Clients' tensors lie anywhere, so that kernels get tables of their addresses and of what each holds. Sums
are those of fixed parts in a fixed order: the same input gives the same bits. Products are in TF32; whoever asks for
more is served by `plain`.
"""

import os
import shutil
from functools import cache

import torch
from torch import Tensor

from pa3dfl.decoders.decoder import Decoder, Fold, fold

try:
    from pa3dfl.decoders import kernels
except ImportError:  # Triton comes with PyTorch for CUDA only
    kernels = None  # type: ignore[assignment]

# The fastest of those tried on an H200. A tile is so many rows of a weight.
TILE, PARTS_PER_PROCESSOR = 64, 2
OPTIONS = {"num_warps": 4, "num_stages": 1}
# What a tile meets must fit into registers.
CLIENTS, HIDDEN = 64, 128


def serves(decoders: list[Decoder]) -> bool:
    weight, own = decoders[0].weight, decoders[0].own
    fits = len(own) <= CLIENTS and weight.shape[1] <= HIDDEN
    precise_enough = weight.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return weight.is_cuda and fits and precise_enough and _available() and all(map(_lies_well, decoders))


def decode(decoders: list[Decoder]) -> None:
    for d, folded, table in _tables(decoders):
        tiles = -(-len(d.weight) // TILE)
        kernels.decode[(tiles,)](d.weight, d.bias, d.mix, table, *_sizes(d, folded), **OPTIONS)


def learn(decoders: list[Decoder], pace: float) -> tuple[Tensor, Tensor]:
    weight, (m, h), (M, H) = decoders[0].weight, decoders[0].mix.shape, _padded(decoders[0].mix)
    parts = PARTS_PER_PROCESSOR * _processors(weight.device)
    slopes, squares = weight.new_empty(len(decoders), parts, M, H), weight.new_empty(len(decoders), parts)
    for (d, folded, table), slope, square in zip(_tables(decoders), slopes, squares, strict=True):
        kernels.learn[(parts,)](d.weight, d.bias, d.mix, table, slope, square, pace, *_sizes(d, folded), **OPTIONS)
    return slopes.sum(1)[:, :m, :h], squares.sum()


def _tables(decoders: list[Decoder]) -> list[tuple[Decoder, Fold, Tensor]]:
    """With each decoder, the addresses of what its clients hold, and how much that is."""
    folds = [folded for d in decoders if (folded := _fold(d))]
    rows = [[[t.data_ptr() for t in d.own], f.outer, f.columns] for d, f in zip(decoders, folds, strict=True)]
    weight = decoders[0].weight
    # Pinned, so that they are sent without waiting for what runs on the card.
    tables = torch.tensor(rows, dtype=torch.int64, pin_memory=weight.is_cuda).to(weight.device, non_blocking=True)
    return list(zip(decoders, folds, tables, strict=True))


def _sizes(d: Decoder, folded: Fold) -> tuple[int, ...]:
    return len(d.own), len(d.weight), *folded.full[1:], d.mix.shape[1], *_padded(d.mix), TILE


def _padded(mix: Tensor) -> tuple[int, int]:
    """Sizes of products must be powers of two, and 16 at least."""
    m, h = (max(16, 1 << (size - 1).bit_length()) for size in mix.shape)
    return m, h


def _fold(d: Decoder) -> Fold | None:
    return fold(d.shape, tuple([t.shape for t in d.own]))


def _lies_well(d: Decoder) -> bool:
    dense = all(t.is_contiguous() for t in (d.weight, d.bias, d.mix, *d.own))
    return dense and _fold(d) is not None


@cache
def _available() -> bool:
    # Triton makes its launchers with a C compiler.
    return kernels is not None and any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
