"""Dimensions of parameters that consist of blocks, each of which shrinks separately.

Blocks are heads of attention, the two directions of a recurrent layer, and positions of a flattened sequence. A narrow
client has the leading entries of every block. Convolutions are flattened channel first, so their leading entries are
the leading channels.
"""

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from pa3dfl.core.errors import UserError
from pa3dfl.models.divided import divided, pieces
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
    unclear: str = ""
    """A parameter that takes parts of several sizes, so that its leading entries are not those of every part."""


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


def all_blocks(
    model: "Model", heads: Blocks, run: Callable[[Mapping[str, Tensor]], Tensor], narrow: nn.Module | None,
    batch: Tensor,
) -> Blocks:  # fmt: skip
    """Blocks of heads, and the blocks that one batch shows, traced through the network and through a narrow one."""
    shapes = model.full_shapes
    with torch.enable_grad():
        params = {k: torch.zeros(s).requires_grad_() for k, s in shapes.items()}
        try:
            out = run(params)
        except Exception:  # a user's network may raise anything; then only the heads are known
            return heads
    fed = trace(out, params, (*model.tables, *model.layers))
    fed = {k: f._replace(by=of_channels(model, f.by)) for k, f in fed.items()}
    for bound in model.stacks.bound:  # a recurrent layer's inputs include its own outputs, which may be projected
        for name in bound:
            module, hidden, rest = name.partition(".hh")
            if hidden:
                projection = f"{module}.hr{rest.partition('.')[0]}"
                own = [projection] if f"{projection}.weight" in shapes else bound
                fed[f"{name}.weight"] = Fed(frozenset(own), False)
    orders, units = dict(heads.orders), dict(heads.units)
    rows = {} if narrow is None else divided_rows(model, out, params, narrow, batch)
    for layer, (shrink, together) in rows.items():
        for k in (f"{layer}.weight", f"{layer}.bias"):
            if k in shapes:
                orders[k], units[k] = (shrink,), (together,)
    unclear = set()
    for k, of in fed.items():
        if of.by & rows.keys():
            columns(model, k, of.by, rows, orders, units)
            continue
        for d in model.takes(k) if of.by else ():
            n = blocks_of(model, k, shapes[k][d], of)
            if n > 1:
                orders[k], units[k] = (with_blocks(known.get(k, ()), d, n) for known in (orders, units))
            if n == 0 and narrow is not None:
                unclear.add(k)
    return Blocks(orders, units, fed, next((k for k in shapes if k in unclear), ""))


def blocks_of(model: "Model", k: str, inputs: int, fed: Fed) -> int:
    """How many blocks the inputs of a parameter consist of; 0 if it takes parts of several sizes."""
    sizes = {model.outputs(n) for n in fed.by}
    convolved = [len(model.full_shapes[f"{n}.weight"]) > 2 for n in fed.by]
    size = max(sizes)
    if inputs <= size or (all(convolved) and not fed.concatenated):
        return 1
    if len(sizes) > 1:
        return 0 if fed.concatenated else 1
    if all(convolved) and len(model.full_shapes[k]) < 3:  # each channel may have pixels
        return fed.parts if fed.parts and inputs % (fed.parts * size) == 0 else 0
    if inputs % size:
        return 0 if fed.concatenated else 1
    return inputs // size


def of_channels(model: "Model", by: frozenset[str]) -> frozenset[str]:
    """Without layers that do not shrink, beside others that do: they weigh what the others give, as scores do."""
    return frozenset(n for n in by if model.shrinks(n)) or by


def divided_rows(
    model: "Model", out: Tensor, params: Mapping[str, Tensor], narrow: nn.Module, batch: Tensor
) -> dict[str, tuple[int, int]]:
    """For each layer whose outputs are divided: how many blocks shrink, and how many outputs belong together."""
    own = [n for n in model.layers if all(n not in of for of in model.stacks.layers.values())]
    full = divided(model.name, out, params, own)
    if not full:
        return {}
    with torch.enable_grad():
        shrunk = divided(model.name, narrow(batch), dict(narrow.named_parameters()), own)
    return {n: pieces(model.name, n, model.outputs(n), full[n], shrunk.get(n, ())) for n in full}


def columns(
    model: "Model", k: str, by: Collection[str], rows: Mapping[str, tuple[int, int]], orders: Orders, units: Orders
) -> None:
    """Note the blocks of a parameter's input dimensions that read divided outputs, all of them or one piece."""
    of = {(model.outputs(n), rows.get(n, (1, 1))) for n in by}
    if len(of) > 1:
        raise UserError(
            f"model {model.name!r} adds outputs that it divides into heads to others before {k!r}: give heads a layer "
            "of their own"
        )
    [(size, own)] = of
    for d in model.takes(k):
        n = model.full_shapes[k][d]
        times = Fraction(n, size)
        for known, b in zip((orders, units), own, strict=True):
            blocks = b * times
            if blocks.denominator == 1 and blocks > 1:
                known[k] = with_blocks(known.get(k, ()), d, int(blocks))


def with_blocks(known: tuple[int, ...], dim: int, n: int) -> tuple[int, ...]:
    sizes = [*known, *[1] * (dim + 1 - len(known))]
    sizes[dim] = n
    return tuple(sizes)
