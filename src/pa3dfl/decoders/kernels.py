"""The passes of `fused` over a decoder's weight, in Triton. Sizes in capitals are padded to powers of two."""

import triton
import triton.language as tl

SIZES = ["m", "count", "inner", "columns", "pace"]  # one compiled kernel for all of them


@triton.jit
def _place(rows, count, h: tl.constexpr, H: tl.constexpr):
    """Rows of a (count, h) matrix: where they are, and whether."""
    column = tl.arange(0, H)[None, :]
    inside = (rows < count)[:, None]
    if h < H:  # not always: a condition on columns keeps loads from being wide
        inside = inside & (column < h)
    return rows.to(tl.int64)[:, None] * h + column, inside


@triton.jit
def _matrix(start, rows, count, h: tl.constexpr, H: tl.constexpr):
    at, inside = _place(rows, count, h, H)
    return tl.load(start + at, mask=inside, other=0.0)


@triton.jit
def _held(table, m, rows, inner, columns, M: tl.constexpr, TILE: tl.constexpr):
    """Where each client keeps these rows of its output (TILE, M), and whether it does."""
    client = tl.arange(0, M)
    start = tl.load(table + client, mask=client < m, other=0).to(tl.pointer_type(tl.float32))[None, :]
    own_outer = tl.load(table + m + client, mask=client < m, other=0).to(tl.int32)[None, :]
    own_columns = tl.load(table + 2 * m + client, mask=client < m, other=0).to(tl.int32)[None, :]
    row, column = (rows // columns)[:, None], (rows % columns)[:, None]
    # True within a row only; said because it makes neighbours in a warp neighbours in memory.
    address = tl.max_contiguous(start + (row * own_columns + column), (TILE, 1))
    return address, (row // inner < own_outer) & (column < own_columns)


@triton.jit(do_not_specialize=SIZES)
def decode(
    weight, bias, mix, table, m, count, inner, columns,
    h: tl.constexpr, M: tl.constexpr, H: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    w, e = _matrix(weight, rows, count, h, H), _matrix(mix, tl.arange(0, M), m, h, H)
    b = tl.load(bias + rows, mask=rows < count, other=0.0)
    where, held = _held(table, m, rows, inner, columns, M, TILE)
    tl.store(where, tl.dot(w, tl.trans(e)) + b[:, None], mask=held)


@triton.jit(do_not_specialize=SIZES)
def learn(
    weight, bias, mix, table, slopes, squares, pace, m, count, inner, columns,
    h: tl.constexpr, M: tl.constexpr, H: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    part, client, column = tl.program_id(0), tl.arange(0, M), tl.arange(0, H)
    # Once as it is and once read in columns: products want an operand along the axis that they sum over.
    e = _matrix(mix, client, m, h, H)
    e_turned = tl.load(
        mix + client[None, :] * h + column[:, None], mask=(client < m)[None, :] & (column < h)[:, None], other=0.0
    )
    slope, square = tl.zeros((M, H), tl.float32), tl.zeros((TILE,), tl.float32)
    for first in range(part * TILE, count, tl.num_programs(0) * TILE):
        rows = first + tl.arange(0, TILE)
        # All loads come before all sums: a tile waits for the memory once.
        where, held = _held(table, m, rows, inner, columns, M, TILE)
        at, inside = _place(rows, count, h, H)
        w = tl.load(weight + at, mask=inside, other=0.0)
        # Infinity marks what a client does not hold: `held` once more would cost many registers.
        trained = tl.load(where, mask=held, other=float("inf"))
        b = tl.load(bias + rows, mask=rows < count, other=0.0)
        error = trained - (tl.dot(w, tl.trans(e)) + b[:, None])
        error = tl.where(trained == float("inf"), 0.0, error)
        tl.store(where, error, mask=held)
        step, step_of_bias = tl.dot(error, tl.trans(e_turned)), tl.sum(error, 1)
        tl.store(weight + at, w + pace * step, mask=inside)
        tl.store(bias + rows, b + pace * step_of_bias, mask=rows < count)
        square += tl.sum(step * step, 1) + step_of_bias * step_of_bias
        slope += tl.dot(tl.trans(error), w)
    tl.store(slopes + (part * M + client)[:, None] * H + column[None, :], slope)
    tl.store(squares + part, tl.sum(square, 0))
