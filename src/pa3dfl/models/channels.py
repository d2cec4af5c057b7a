"""Dimensions of parameters that are the same channels.

Layers whose outputs are combined before the next layer (a residual sum, a gate, heads of attention) share their
channels, and a norm has the channels of its input. A method in which every layer chooses its channels needs this.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import lcm

from pa3dfl.core.errors import UserError
from pa3dfl.models.model import FULL, Model


@dataclass(frozen=True)
class Channels:
    """Groups of channels in the order of the layers' calls; each is named by its first layer.

    `layers` are a group's members, embeddings first. `sizes` are its channels; a channel is `units` outputs of a
    member, which belong together: one dimension of every head, or a whole head. `dims` names the group of each of a
    parameter's leading dimensions (None: never pruned).
    """

    layers: dict[str, tuple[str, ...]]
    sizes: dict[str, int]
    units: dict[str, int]
    dims: dict[str, tuple[str | None, ...]]


@lru_cache(maxsize=16)
def channels(model: Model) -> Channels:
    shapes, blocks = model.shapes(FULL), model.blocks
    names = (*model.tables, *model.layers)
    parent = {layer: layer for layer in names}

    def group(layer: str) -> str:
        return layer if parent[layer] == layer else group(parent[layer])

    def join(layers: Iterable[str]) -> str | None:
        """One group of all these layers; the first one names it."""
        roots = sorted({group(n) for n in layers}, key=names.index)
        parent.update(dict.fromkeys(roots, roots[0]) if roots else {})
        return roots[0] if roots else None

    for bound in model.stacks.bound:
        join(bound)
    for k, fed in blocks.fed.items():
        first, owner = join(fed.by), k.rpartition(".")[0]
        if first is not None and fed.concatenated:
            refuse_concatenation(model, k, fed.by)
        grouped = model.is_layer(k) and len(shapes[k]) > 2 and shapes[k][1] == 1 and first is not None
        if grouped and shapes[k][0] == model.outputs(first or ""):  # depthwise: channel c feeds channel c
            join([*fed.by, owner])
    roots = [n for n in names if group(n) == n]
    members = {g: tuple(n for n in names if group(n) == g) for g in roots}
    units = {
        g: lcm(*(blocks.units.get(f"{n}.weight", (1,))[0] for n in of if n in model.layers))
        for g, of in members.items()
    }
    sizes = {g: model.outputs(g) // units[g] for g in roots}
    dims: dict[str, tuple[str | None, ...]] = {}
    for k, shape in shapes.items():
        owner = k.rpartition(".")[0]
        found: list[str | None] = [None] * (min(2, len(shape)) if owner in (*names, model.head) else len(shape))
        if owner in parent:
            found[k.endswith(".weight") and owner in model.tables] = group(owner)
        by = blocks.fed[k].by if k in blocks.fed else ()  # a network may hold parameters that it does not use
        for d in model.takes(k) if by else ():
            found[d] = group(next(iter(by)))
        # Pixels of a flattened channel lie side by side.
        dims[k] = tuple(g if g and n % sizes[g] == 0 else None for g, n in zip(found, shape, strict=False))
    return Channels(members, sizes, units, dims)


def refuse_concatenation(model: Model, name: str, by: Iterable[str]) -> None:
    """Concatenated blocks of one size are handled (`blocks.py`)."""
    shape, sizes = model.shapes(FULL)[name], {model.outputs(n) for n in by}
    for d in model.takes(name):
        if len(sizes) > 1 or shape[d] % max(sizes) or model.blocks.unclear:
            raise UserError(
                f"model {model.name!r} concatenates channels, so their layers are unknown; choose a method "
                "that keeps leading channels, such as heterofl"
            )


def feature_norms(model: Model) -> tuple[str, ...]:
    """Weights of the norms that scale the head's inputs; none if a layer scales them."""
    if not model.normalised:
        return ()
    try:
        dims = channels(model).dims
    except UserError:  # unknown for a network that concatenates
        return ()
    group = dims[f"{model.head}.weight"][1]
    return tuple(k for k, of in dims.items() if of[:1] == (group,) and k.endswith(".weight") and not model.is_layer(k))
