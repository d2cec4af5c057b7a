"""Decoders on a GPU: one pass over all weights for each operation.

A decoder is as large as what it does is simple: h numbers are read for each one it makes. It is as fast as the memory
if nothing but the weights and what clients hold is read or written: no output and no error at full size, no tile of a
weight twice. Clients' tensors lie anywhere, so that kernels get a table of their addresses and of what each holds. Sums
are those of fixed parts in a fixed order: the same input gives the same bits. Products are in TF32; whoever asks for
more is served by `plain`.
"""

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pa3dfl.decoders.decoder import Decoder

THREADS, ROWS = 128, 64  # of a block; rows that it takes at a time
# Blocks that a processor gets in the course of a pass: a few at a time, and many, so that the last ones end together.
BLOCKS_PER_PROCESSOR = 18
# Sums of h · clients numbers must fit into registers.
SUMS, HIDDEN = 64 * 40, 128


def serves(decoders: list[Decoder]) -> bool:
    weight, (m, h) = decoders[0].weight, decoders[0].mix.shape
    fits = h % 16 == 0 and h <= HIDDEN and h * _padded(m) <= SUMS
    precise_enough = weight.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    if not (weight.is_cuda and fits and precise_enough):
        return False
    return all(map(_lies_well, decoders)) and _kernels(h, m, weight.device) is not None


def decode(decoders: list[Decoder]) -> None:
    table, spans, _ = _plan(decoders)
    _launch(decoders, "decode", spans, table, spans)


def learn(decoders: list[Decoder], pace: float) -> tuple[Tensor, Tensor]:
    table, spans, blocks = _plan(decoders)
    mix = decoders[0].mix
    slopes, squares = mix.new_empty(len(spans), *mix.shape), mix.new_empty(len(spans))
    _launch(decoders, "learn", spans, table, spans, slopes, squares, pace)
    return torch.stack([part.sum(0) for part in slopes.split(blocks)]), squares.sum()


def _plan(decoders: list[Decoder]) -> tuple[Tensor, Tensor, list[int]]:
    """For each decoder, where it and what its clients hold lie; for each block, what it works on; blocks by decoder."""
    rows, held = [], []
    for d in decoders:
        folded = d.folded
        assert folded, "serves() was asked"
        _, inner, columns = folded.full
        held.append(max(folded.outer) * inner * columns)
        row = [d.weight.data_ptr(), d.bias.data_ptr(), d.mix.data_ptr(), held[-1], inner | columns << 32]
        for own, outer, own_columns in zip(d.own, folded.outer, folded.columns, strict=True):
            row += own.data_ptr(), outer | own_columns << 32
        rows.append(row)
    device = decoders[0].weight.device
    # Pinned, so that it is sent without waiting for what runs on the card.
    table = torch.tensor(rows, dtype=torch.int64, pin_memory=True).to(device, non_blocking=True)
    return table, *_spans(tuple(held), device)


@lru_cache(maxsize=16)
def _spans(rows: tuple[int, ...], device: torch.device) -> tuple[Tensor, list[int]]:
    """Rows of each decoder in parts of about the same size: (blocks, 4), and how many of them are a decoder's."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    size = -(-sum(rows) // (BLOCKS_PER_PROCESSOR * processors * ROWS)) * ROWS
    spans = [(i, at, min(at + size, n), 0) for i, n in enumerate(rows) for at in range(0, n, size)]
    return torch.tensor(spans, dtype=torch.int32, device=device), [-(-n // size) for n in rows]


def _launch(decoders: list[Decoder], name: str, spans: Tensor, *args: Tensor | float) -> None:
    m, h = decoders[0].mix.shape
    kernels = _kernels(h, m, spans.device)
    assert kernels, "serves() was asked"
    with torch.cuda.device(spans.device):
        kernels[name](grid=(len(spans), 1, 1), block=(THREADS, 1, 1), args=[*args], shared_mem=_room(h, m))


@cache
def _kernels(h: int, m: int, device: torch.device) -> dict[str, Any] | None:
    """`kernels.cu` for these sizes; None where it cannot be compiled."""
    source = Path(__file__).with_name("kernels.cu").read_text()
    options = [f"-DH={h}", f"-DM={m}", f"-DROOM={_room(h, m)}"]
    kernels = {}
    with torch.cuda.device(device):
        for name in ("decode", "learn"):
            try:
                kernels[name] = torch.cuda._compile_kernel(source, name, nvcc_options=options)
                kernels[name].set_shared_memory_config(_room(h, m))
            except (AttributeError, OSError, RuntimeError):  # an older PyTorch, no compiler with it, an older card
                return None
    return kernels


def _room(h: int, m: int) -> int:
    """Bytes of the memory that a block shares: `Room` in kernels.cu."""
    clients = _padded(m)
    stage = 16 * (h + 8) + 20 * clients + 16
    return 4 * (2 * h * clients + 4 * clients + THREADS // 32 * 2 * stage)


def _padded(m: int) -> int:
    return -(-m // 8) * 8


def _lies_well(d: Decoder) -> bool:
    dense = all(t.is_contiguous() for t in (d.weight, d.bias, d.mix, *d.own))
    return dense and d.weight.data_ptr() % 16 == 0 and d.folded is not None
