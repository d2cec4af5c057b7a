"""Decoders on a GPU: one pass over all weights for each operation.

A decoder is as large as what it does is simple: h numbers are read for each one it makes. It is as fast as the memory
if nothing but the weights and what clients hold is read or written: no output and no error at full size, no tile of a
weight twice. Clients' tensors lie anywhere, so that kernels get a table of their addresses and of what each holds. Sums
are those of fixed parts in a fixed order: the same input gives the same bits. Products are in TF32; whoever asks for
more is served by `plain`.
"""

import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pa3dfl.methods.common.decoders.decoder import Decoder, Held, Shape, fold

WARPS, ROWS = 4, 16  # of a block, and of a weight that a warp takes at a time (so in kernels.cu)
# Blocks that a processor gets in the course of a pass: a few at a time, and many, so that the last ones end together.
BLOCKS_PER_PROCESSOR = 48
HIDDEN = (16, 32, 64, 128)
SUMS = 128 * 24  # Sums of h · clients numbers must fit into registers.


def serves(decoders: list[Decoder], clients: list[Held]) -> bool:
    weight, (m, h) = decoders[0].weight, decoders[0].mix.shape
    fits = h in HIDDEN and h * _padded(m) <= SUMS
    precise_enough = weight.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    if not (weight.is_cuda and fits and precise_enough and all(map(_lies_well, decoders))):
        return False
    alike = all(held.like.dtype == weight.dtype and held.like.device == weight.device for held in clients)
    dense = all(held.dense() for held in clients)
    planned = alike and dense and _plan(decoders, clients) is not None
    return planned and _kernels(h, _padded(m), weight.device) is not None


def decode(decoders: list[Decoder], clients: list[Held]) -> None:
    table, spans = _prepare(decoders, clients)
    _launch("decode", decoders, len(spans), table, spans.table, len(clients))


def learn(decoders: list[Decoder], clients: list[Held], pace: float) -> tuple[Tensor, Tensor]:
    table, spans = _prepare(decoders, clients)
    (m, h), like = decoders[0].mix.shape, decoders[0].weight
    parts, slopes = (like.new_empty(n, _padded(m), h) for n in (len(spans), len(decoders)))
    squares = like.new_empty(len(spans))
    _launch("learn", decoders, len(spans), table, spans.table, m, parts, squares, pace)
    _launch("total", decoders, -(-slopes[0].numel() // (32 * WARPS)) * len(decoders), parts, spans.starts, slopes)
    return slopes[:, :m], squares.sum()


@dataclass(frozen=True)
class Spans:
    """Decoders' rows, in parts of about the same size."""

    table: Tensor  # (blocks, 4): of each, the decoder and the rows that it works on
    starts: Tensor  # (decoders + 1): where the blocks of each decoder begin

    def __len__(self) -> int:
        return len(self.table)


def _prepare(decoders: list[Decoder], clients: list[Held]) -> tuple[Tensor, Spans]:
    """A table of all that kernels need to know, and what each block works on."""
    plan = _plan(decoders, clients)
    assert plan, "not served"
    table, spans = plan[0].copy(), _spans(plan[1], decoders[0].weight.device)
    table[:, :3] = [[t.data_ptr() for t in (d.weight, d.bias, d.mix)] for d in decoders]
    table[:, 4 : 4 + 2 * len(clients) : 2] = np.array([held.addresses() for held in clients]).T
    # Pinned, so that it is sent without waiting for what runs on the card.
    sent = torch.from_numpy(table).pin_memory() if spans.table.is_cuda else torch.from_numpy(table)
    return sent.to(spans.table.device, non_blocking=True), spans


Plan = tuple[NDArray[np.int64], tuple[int, ...]]


def _plan(decoders: list[Decoder], clients: list[Held]) -> Plan | None:
    return _planned(tuple([d.shape for d in decoders]), tuple([held.shapes for held in clients]))


@lru_cache(maxsize=64)
def _planned(shapes: tuple[Shape, ...], held: tuple[tuple[Shape, ...], ...]) -> Plan | None:
    """The table, an `Output` of kernels.cu in each row, but for addresses; and how many rows of a weight count."""
    table = np.zeros((len(shapes), 4 + 2 * _padded(len(held))), np.int64)
    rows = []
    for i, shape in enumerate(shapes):
        folded = fold(shape, [own[i] for own in held])
        if folded is None:
            return None
        _, inner, columns = folded.full
        rows.append(max(folded.outer) * inner * columns)  # that anybody holds
        table[i, 3] = inner | columns << 32
        table[i, 5 : 5 + 2 * len(held) : 2] = [a | b << 32 for a, b in zip(folded.outer, folded.columns, strict=True)]
    return table, tuple(rows)


@lru_cache(maxsize=64)
def _spans(rows: tuple[int, ...], device: torch.device) -> Spans:
    blocks, at_once = BLOCKS_PER_PROCESSOR * _processors(device), WARPS * ROWS
    size = -(-sum(rows) // (blocks * at_once)) * at_once
    table = [(i, at, min(at + size, n), 0) for i, n in enumerate(rows) for at in range(0, n, size)]
    starts = np.cumsum([0] + [-(-n // size) for n in rows])
    return Spans(*(torch.tensor(t, dtype=torch.int32, device=device) for t in (table, starts)))


def _launch(name: str, decoders: list[Decoder], blocks: int, *args: Tensor | float) -> None:
    (m, h), device = decoders[0].mix.shape, decoders[0].weight.device
    kernels = _kernels(h, _padded(m), device)
    assert kernels, "not served"
    with torch.cuda.device(device):
        kernels[name](grid=(blocks, 1, 1), block=(32 * WARPS, 1, 1), args=[*args], shared_mem=_room(h, _padded(m)))


@cache
def _kernels(h: int, clients: int, device: torch.device) -> dict[str, Any] | None:
    """`kernels.cu` for these sizes, which takes a second or two; None where it cannot be compiled."""
    source = "".join(Path(__file__).with_name(name).read_text() for name in ("primitives.cu", "kernels.cu"))
    options, room = [f"-D{k}={v}" for k, v in given(h, clients).items()], _room(h, clients)
    kernels = {}
    with torch.cuda.device(device):
        for name in ("decode", "learn", "total"):
            try:
                kernels[name] = torch.cuda._compile_kernel(source, name, nvcc_options=options)
                kernels[name].set_shared_memory_config(room)
            except (AttributeError, OSError, RuntimeError) as e:  # an older PyTorch, no compiler with it, an older card
                reason = (str(e).splitlines() or [type(e).__name__])[0]
                print(f"pa3dfl: the hyper-network is slower: no kernels for this GPU ({reason})", file=sys.stderr)
                return None
    return kernels


def given(h: int, clients: int) -> dict[str, int]:
    """What kernels.cu is compiled with."""
    return {"H": h, "C": clients, "WARPS": WARPS, "ROOM": _room(h, clients)}


def _room(h: int, clients: int) -> int:
    """Bytes of the memory that a block shares: `Room` in kernels.cu."""
    stage = ROWS * (h + 8) + (ROWS + 4) * clients + ROWS
    return 4 * (2 * h * clients + 4 * clients + WARPS * 2 * stage)


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _padded(m: int) -> int:
    return -(-m // 8) * 8


def _lies_well(d: Decoder) -> bool:
    return (
        d.weight.is_contiguous() and d.bias.is_contiguous() and d.mix.is_contiguous() and d.weight.data_ptr() % 16 == 0
    )
