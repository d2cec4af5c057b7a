"""Dimensions of parameters that consist of blocks, of which each shrinks by itself.

Blocks are heads of attention, the two directions of a recurrent layer, and positions of a flattened sequence. A narrow
client has the leading entries of every block. Convolutions are flattened channel first, so their leading entries are
the leading channels.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pa3dfl.models.stacked import Orders, Stacks, of_heads
from pa3dfl.models.tracing import Fed, trace

if TYPE_CHECKING:
    from pa3dfl.models.model import Model

Shapes = Mapping[str, tuple[int, ...]]


class Blocks(NamedTuple):
    orders: Orders
    """How many blocks each leading dimension of an entry has."""
    units: Orders
    """How many consecutive entries belong together: a method takes all of them or none."""
    fed: dict[str, Fed]


def head_blocks(stacks: Stacks, narrow: Stacks | None, shapes: Shapes) -> Blocks:
    """All heads shrink alike; or whole heads are dropped, if a narrow network has fewer."""
    orders: Orders = {}
    units: Orders = {}
    for module, heads in stacks.heads.items():
        if narrow is None or narrow.heads[module] == heads:
            orders |= of_heads(module, heads)
            units |= of_heads(module, heads)
        else:
            size = shapes[f"{stacks.layers[module][-1]}.weight"][1] // heads
            units |= of_heads(module, size)
    return Blocks(orders, units, {})


def all_blocks(model: "Model", heads: Blocks, run: Callable[[Mapping[str, Tensor]], Tensor]) -> Blocks:
    """Blocks of heads, and those that a trace of one batch through the network shows."""
    shapes = model.full_shapes
    with torch.enable_grad():
        params = {k: torch.zeros(s).requires_grad_() for k, s in shapes.items()}
        try:
            out = run(params)
        except Exception:  # a user's network may raise anything; then only the heads are known
            return heads
    fed = trace(out, params, (*model.tables, *model.layers))
    for bound in model.stacks.bound:  # a recurrent layer's inputs include its own outputs, which may be projected
        for name in bound:
            module, hidden, rest = name.partition(".hh")
            if hidden:
                projection = f"{module}.hr{rest.partition('.')[0]}"
                own = [projection] if f"{projection}.weight" in shapes else bound
                fed[f"{name}.weight"] = Fed(frozenset(own), False)
    orders, units = dict(heads.orders), dict(heads.units)
    for k, (by, _) in fed.items():
        sizes = {model.outputs(n) for n in by}
        if len(sizes) != 1 or all(len(shapes[f"{n}.weight"]) > 2 for n in by):
            continue
        [size] = sizes
        for d in model.takes(k):
            n = shapes[k][d]
            if n > size and n % size == 0:
                orders[k], units[k] = (with_blocks(of.get(k, ()), d, n // size) for of in (orders, units))
    return Blocks(orders, units, fed)


def with_blocks(known: tuple[int, ...], dim: int, n: int) -> tuple[int, ...]:
    sizes = [*known, *[1] * (dim + 1 - len(known))]
    sizes[dim] = n
    return tuple(sizes)
