"""Decoders on a GPU: one pass over all weights for each operation.

A decoder reads h weights per generated parameter, so memory bandwidth limits its speed. It reaches this limit if it
reads and writes only the weights and the entries that clients hold: no output and no error at full size, and no tile of
a weight twice. Clients' tensors lie at arbitrary addresses, so kernels get a table of addresses and shapes. Sums are
over fixed parts in a fixed order, so that equal inputs give equal bits. Products are in TF32; `plain` serves higher
precisions.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pa3dfl.core.logging import log
from pa3dfl.methods.common.decoders.decoder import Decoder, Held, Shape, fold

WARPS, ROWS = 4, 16  # warps of a block, and rows of a weight that a warp reads at a time (as in tiles.cu)
# Blocks per processor in a pass: many more than run at a time, so that all processors finish at about the same time.
BLOCKS_PER_PROCESSOR = 48
HIDDEN = (16, 32, 64, 128)
SUMS = 128 * 24  # the largest h · clients whose sums fit into registers


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
    """The decoders' rows in parts of about equal size, one per block."""

    table: Tensor  # (blocks, 4): the decoder and the range of rows of each block
    starts: Tensor  # (decoders + 1): the first block of each decoder

    def __len__(self) -> int:
        return len(self.table)


def _prepare(decoders: list[Decoder], clients: list[Held]) -> tuple[Tensor, Spans]:
    """The table that kernels read (an `Output` of tiles.cu per decoder), and the spans of the blocks."""
    plan = _plan(decoders, clients)
    assert plan, "not served"
    table, spans = plan[0].copy(), _spans(plan[1], decoders[0].weight.device)
    table[:, :3] = [[t.data_ptr() for t in (d.weight, d.bias, d.mix)] for d in decoders]
    table[:, 4 : 4 + 2 * len(clients) : 2] = np.array([held.addresses() for held in clients]).T
    # Pinned, so that the copy does not wait for work that runs on the GPU.
    sent = torch.from_numpy(table).pin_memory() if spans.table.is_cuda else torch.from_numpy(table)
    return sent.to(spans.table.device, non_blocking=True), spans


Plan = tuple[NDArray[np.int64], tuple[int, ...]]


def _plan(decoders: list[Decoder], clients: list[Held]) -> Plan | None:
    return _planned(tuple([d.shape for d in decoders]), tuple([held.shapes for held in clients]))


@lru_cache(maxsize=64)
def _planned(shapes: tuple[Shape, ...], held: tuple[tuple[Shape, ...], ...]) -> Plan | None:
    """The table without addresses, and for each decoder the number of weight rows that any client holds."""
    table = np.zeros((len(shapes), 4 + 2 * _padded(len(held))), np.int64)
    rows = []
    for i, shape in enumerate(shapes):
        folded = fold(shape, [own[i] for own in held])
        if folded is None:
            return None
        _, inner, columns = folded.full
        rows.append(max(folded.outer) * inner * columns)
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
        kernels[name](
            grid=(blocks, 1, 1), block=(32 * WARPS, 1, 1), args=[*args], shared_mem=_shared_bytes(h, _padded(m))
        )


@cache
def _kernels(h: int, clients: int, device: torch.device) -> dict[str, Any] | None:
    """`kernels.cu`, compiled for these sizes in a second or two; None if it cannot be compiled."""
    source = "".join(Path(__file__).with_name(name).read_text() for name in ("primitives.cu", "tiles.cu", "kernels.cu"))
    options, shared = [f"-D{k}={v}" for k, v in given(h, clients).items()], _shared_bytes(h, clients)
    kernels = {}
    with torch.cuda.device(device):
        for name in ("decode", "learn", "total"):
            try:
                kernels[name] = torch.cuda._compile_kernel(source, name, nvcc_options=options)
                kernels[name].set_shared_memory_config(shared)
            except (AttributeError, OSError, RuntimeError) as e:  # an older PyTorch, no compiler with it, an older card
                reason = (str(e).splitlines() or [type(e).__name__])[0]
                log.warning(f"the hyper-network is slower: no kernels for this GPU ({reason})")
                return None
    return kernels


def given(h: int, clients: int) -> dict[str, int]:
    """The constants that kernels.cu is compiled with."""
    return {"H": h, "C": clients, "WARPS": WARPS, "SHARED_BYTES": _shared_bytes(h, clients)}


def _shared_bytes(h: int, clients: int) -> int:
    """Bytes of a block's shared memory: `Shared` in tiles.cu."""
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
