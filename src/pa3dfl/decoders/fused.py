"""Decoders on a GPU: one pass over all weights for each operation.

A decoder is as large as what it does is simple: h numbers are read for each one it makes. It is as fast as the memory
if nothing but the weights and what clients hold is read or written: no output and no error at full size, no tile of a
weight twice. Clients' tensors lie anywhere, so that kernels get a table of their addresses and of what each holds. Sums
are those of fixed parts in a fixed order: the same input gives the same bits. Products are in TF32; whoever asks for
more is served by `plain`.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pa3dfl.decoders.decoder import Decoder, Held, Shape, fold

WARPS, ROWS = 4, 16  # of a block, and of a weight that a warp takes at a time (so in kernels.cu)
# Blocks that a processor gets in the course of a pass: a few at a time, and many, so that the last ones end together.
BLOCKS_PER_PROCESSOR = 48
HIDDEN = (16, 32, 64, 128)
SUMS = 64 * 40  # Sums of h · clients numbers must fit into registers.


def serves(decoders: list[Decoder], clients: list[Held]) -> bool:
    weight, (m, h) = decoders[0].weight, decoders[0].mix.shape
    fits = h in HIDDEN and h * _padded(m) <= SUMS
    precise_enough = weight.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    if not (weight.is_cuda and fits and precise_enough and all(map(_lies_well, decoders))):
        return False
    dense = all(held.dense() for held in clients)
    return dense and _plan(decoders, clients) is not None and _kernels(h, m, weight.device) is not None


def decode(decoders: list[Decoder], clients: list[Held]) -> None:
    plan, table = _prepare(decoders, clients)
    _launch("decode", decoders, len(plan.spans), table, plan.spans)


def learn(decoders: list[Decoder], clients: list[Held], pace: float) -> tuple[Tensor, Tensor]:
    plan, table = _prepare(decoders, clients)
    mix, blocks = decoders[0].mix, len(plan.spans)
    parts, squares, slopes = (
        mix.new_empty(size) for size in ((blocks, *mix.shape), (blocks,), (len(decoders), *mix.shape))
    )
    _launch("learn", decoders, blocks, table, plan.spans, parts, squares, pace)
    _launch("total", decoders, len(decoders) * -(-mix.numel() // (32 * WARPS)), parts, plan.blocks, slopes)
    return slopes, squares.sum()


@dataclass(frozen=True)
class Plan:
    """All but addresses of what a pass needs to know."""

    table: NDArray[np.int64]  # (decoders, 4 + 2m): a row is an `Output` of kernels.cu
    spans: Tensor  # (blocks, 4): of each, the decoder and the rows that it works on
    blocks: Tensor  # (decoders + 1): where the blocks of each decoder begin


def _prepare(decoders: list[Decoder], clients: list[Held]) -> tuple[Plan, Tensor]:
    plan = _plan(decoders, clients)
    assert plan, "not served"
    table = plan.table.copy()
    table[:, :3] = [[t.data_ptr() for t in (d.weight, d.bias, d.mix)] for d in decoders]
    table[:, 4::2] = np.array([held.addresses() for held in clients]).T
    # Pinned, so that it is sent without waiting for what runs on the card.
    return plan, torch.from_numpy(table).pin_memory().to(plan.spans.device, non_blocking=True)


def _plan(decoders: list[Decoder], clients: list[Held]) -> Plan | None:
    return _planned(
        tuple([d.shape for d in decoders]), tuple([held.shapes for held in clients]), decoders[0].weight.device
    )


@lru_cache(maxsize=64)
def _planned(shapes: tuple[Shape, ...], held: tuple[tuple[Shape, ...], ...], device: torch.device) -> Plan | None:
    table, rows = [], []
    for i, shape in enumerate(shapes):
        folded = fold(shape, [own[i] for own in held])
        if folded is None:
            return None
        _, inner, columns = folded.full
        rows.append(max(folded.outer) * inner * columns)  # that anybody holds
        limits = [outer | own << 32 for outer, own in zip(folded.outer, folded.columns, strict=True)]
        table.append([0, 0, 0, inner | columns << 32, *[number for limit in limits for number in (0, limit)]])
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    at_once = WARPS * ROWS
    size = -(-sum(rows) // (BLOCKS_PER_PROCESSOR * processors * at_once)) * at_once
    spans = [(i, at, min(at + size, n), 0) for i, n in enumerate(rows) for at in range(0, n, size)]
    blocks = np.cumsum([0] + [-(-n // size) for n in rows])
    return Plan(np.array(table), *(torch.tensor(t, dtype=torch.int32, device=device) for t in (spans, blocks)))


def _launch(name: str, decoders: list[Decoder], blocks: int, *args: Tensor | float) -> None:
    (m, h), device = decoders[0].mix.shape, decoders[0].weight.device
    kernels = _kernels(h, m, device)
    assert kernels, "not served"
    with torch.cuda.device(device):
        kernels[name](grid=(blocks, 1, 1), block=(32 * WARPS, 1, 1), args=[*args], shared_mem=_room(h, m))


@cache
def _kernels(h: int, m: int, device: torch.device) -> dict[str, Any] | None:
    """`kernels.cu` for these sizes; None where it cannot be compiled."""
    source = Path(__file__).with_name("kernels.cu").read_text()
    given = {"H": h, "M": m, "WARPS": WARPS, "ROOM": _room(h, m)}
    kernels = {}
    with torch.cuda.device(device):
        for name in ("decode", "learn", "total"):
            try:
                kernel = torch.cuda._compile_kernel(source, name, nvcc_options=[f"-D{k}={v}" for k, v in given.items()])
                kernel.set_shared_memory_config(_room(h, m))
            except (AttributeError, OSError, RuntimeError):  # an older PyTorch, no compiler with it, an older card
                return None
            kernels[name] = kernel
    return kernels


def _room(h: int, m: int) -> int:
    """Bytes of the memory that a block shares: `Room` in kernels.cu."""
    clients = _padded(m)
    stage = ROWS * (h + 8) + (ROWS + 4) * clients + ROWS
    return 4 * (2 * h * clients + 4 * clients + WARPS * 2 * stage)


def _padded(m: int) -> int:
    return -(-m // 8) * 8


def _lies_well(d: Decoder) -> bool:
    return (
        d.weight.is_contiguous() and d.bias.is_contiguous() and d.mix.is_contiguous() and d.weight.data_ptr() % 16 == 0
    )
