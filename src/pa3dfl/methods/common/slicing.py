"""Submodels as slices of the full model: which entries a client holds, and how slices are merged.

A place is an index into a tensor: leading slices in every dimension, or sets of positions for chosen channels. `cut`
reads `tensor[place]`; `merge` writes to it.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.models import Model
from pa3dfl.models.channels import channels

Place = tuple[slice | Tensor, ...]
Places = dict[str, Place]


@lru_cache(maxsize=256)
def leading_places(model: Model, width: Fraction) -> Places:
    """The leading channels of every layer: submodels are nested."""
    return {k: tuple(slice(0, n) for n in shape) for k, shape in model.shapes(width).items()}


def rolling_places(model: Model, width: Fraction, offset: int, device: torch.device) -> Places:
    """The window of p·T channels that starts at `offset`, modulo T, in every layer of T channels.

    The window depends on T alone. Therefore an output and the input that it feeds hold the same channels, and so do
    tensors that are added to each other; no graph of the network is needed.
    """
    whole, units = model.shapes(Fraction(1)), model.blocks.units | columns_per_channel(model)
    places: Places = {}
    for k, shape in model.shapes(width).items():
        scaled = [d for d, (n, full) in enumerate(zip(shape, whole[k], strict=True)) if n < full]
        indexed = max(scaled, default=-1) + 1  # dimensions after the last scaled one are kept whole
        sets = []
        for d in range(indexed):
            each = dict(enumerate(units.get(k, ()))).get(d, 1)
            rolled = window(whole[k][d] // each, shape[d] // each, offset)
            held = (rolled[:, None] * each + torch.arange(each)).flatten()
            sets.append(held.to(device).view(-1, *[1] * (indexed - 1 - d)))
        places[k] = tuple(sets)
    return places


def chosen_places(model: Model, width: Fraction, held: Mapping[str, Tensor]) -> Places:
    """The channels `held` of each group of `models.channels`, in the order given."""
    whole, known, device = model.shapes(Fraction(1)), channels(model), next(iter(held.values())).device
    places: Places = {}
    for k, shape in model.shapes(width).items():
        scaled = [d for d, (n, full) in enumerate(zip(shape, whole[k], strict=True)) if n < full]
        indexed = max(scaled, default=-1) + 1
        sets = []
        for d in range(indexed):
            group = known.dims[k][d] if d < len(known.dims[k]) else None
            if d in scaled and group is None:
                raise UserError(
                    f"model {model.name!r}: the channels that feed dimension {d} of {k} are unknown; choose a method "
                    "that keeps leading channels, such as heterofl"
                )
            positions = torch.arange(whole[k][d], device=device)
            chosen = positions.view(known.sizes[group], -1)[held[group]] if group else positions
            sets.append(chosen.reshape(-1, *[1] * (indexed - 1 - d)))
        places[k] = tuple(sets)
    return places


def window(size: int, held: int, offset: int) -> Tensor:
    """`held` consecutive positions from `offset` on, modulo `size`, in ascending order."""
    return ((torch.arange(held) + offset) % size).sort().values


@lru_cache(maxsize=16)
def columns_per_channel(model: Model) -> dict[str, tuple[int, int]]:
    """The number of input columns of a layer after convolutions that belong to one channel: its pixels.

    Features are flattened channel first, so that channel c of P pixels has the columns c·P to c·P + P − 1.
    """
    shapes = model.shapes(Fraction(1))
    columns = {}
    for layer in (*model.layers, model.head):
        k = f"{layer}.weight"
        by = model.blocks.fed[k].by if k in model.blocks.fed else ()
        if not by or len(shapes[k]) > 2 or any(len(shapes[f"{n}.weight"]) < 3 for n in by):
            continue
        inputs, channels = shapes[k][1], max(model.outputs(n) for n in by)
        if inputs % channels:
            raise UserError(
                f"model {model.name!r}: {layer!r} takes {inputs} inputs from {channels} channels, which is not a "
                "multiple; flatten the last convolution, channel first, or choose a method that keeps leading "
                "channels, such as heterofl"
            )
        columns[k] = (model.blocks.units.get(k, (1,))[0], inputs // channels)
    return columns


def cut(tree: Mapping[str, Tensor], places: Places) -> Tree:
    return {k: v[places[k]] for k, v in tree.items()}


def merge(server: Tree, trees: Sequence[Tree], places: Sequence[Places], weights: Sequence[float]) -> Tree:
    """The full model with every entry replaced by its mean over the slices that hold it."""
    if not all(isinstance(d, slice) for of in places for place in of.values() for d in place):
        return {k: entrywise_mean(v, [t[k] for t in trees], [p[k] for p in places], weights) for k, v in server.items()}
    # The same result, with one operation for all tensors of a client, and one for all clients with equal slices.
    total, held = ({k: torch.zeros_like(v) for k, v in server.items()} for _ in range(2))
    together: dict[int, tuple[Places, float]] = {}
    for tree, of, weight in zip(trees, places, weights, strict=True):
        torch._foreach_add_(list(cut(total, of).values()), [tree[k] for k in server], alpha=weight)
        together[id(of)] = of, together.get(id(of), (of, 0.0))[1] + weight
    for of, weight in together.values():
        torch._foreach_add_(list(cut(held, of).values()), weight)
    return {k: _mean(total[k], held[k], old) for k, old in server.items()}


def entrywise_mean(
    old: Tensor, parts: Sequence[Tensor], places: Sequence[Place], weights: Sequence[float | Tensor]
) -> Tensor:
    """Each entry's weighted mean over the parts that hold it; an entry that no part holds keeps its old value.

    A weight is a number, or a tensor that broadcasts over its part and is zero where the part does not count.
    """
    total, held = torch.zeros_like(old), torch.zeros_like(old)
    for part, place, weight in zip(parts, places, weights, strict=True):
        if isinstance(weight, Tensor) or not all(isinstance(d, slice) for d in place):
            total[place] += part * weight
            held[place] += weight
        else:  # the same result in half as many operations
            total[place].add_(part, alpha=weight)
            held[place].add_(weight)
    return _mean(total, held, old)


def _mean(total: Tensor, held: Tensor, old: Tensor) -> Tensor:
    return torch.where(held > 0, total / torch.where(held > 0, held, 1), old)
