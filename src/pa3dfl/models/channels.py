"""Which dimensions of which parameters are the same channels, read off one backward graph.

Layers whose outputs meet before the next layer (a residual sum, a gate) share their channels, and a norm has
those of what it normalises. A method that lets every layer choose its own channels needs to know.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from pa3dfl.core.errors import UserError
from pa3dfl.models.width import FULL, Model


@dataclass(frozen=True)
class Channels:
    """Groups of channels, in the order in which a batch meets them; each is named by its first layer.

    `layers` are a group's members, `sizes` its channels; `dims` names the group of each of a parameter's leading
    dimensions (None: never pruned).
    """

    layers: dict[str, tuple[str, ...]]
    sizes: dict[str, int]
    dims: dict[str, tuple[str | None, ...]]


@lru_cache(maxsize=16)
def channels(model: Model) -> Channels:
    shapes = model.shapes(FULL)
    weights = {f"{layer}.weight" for layer in (*model.layers, model.head)}
    used = _applications(model)
    layer_at = {node: k.removesuffix(".weight") for k in weights for node in used[k]}
    parent = {layer: layer for layer in model.layers}

    def group(layer: str) -> str:
        return layer if parent[layer] == layer else group(parent[layer])

    def join(layers: Iterable[str]) -> str | None:
        """One group of all these layers; the first one names it."""
        roots = sorted({group(n) for n in layers}, key=model.layers.index)
        parent.update(dict.fromkeys(roots, roots[0]) if roots else {})
        return roots[0] if roots else None

    sources = {k: {n for node in nodes for n in _sources(model, node, layer_at)} for k, nodes in used.items()}
    for k, feeding in sources.items():
        first = join(feeding)
        grouped = k in weights and len(shapes[k]) > 2 and shapes[k][1] == 1 and first is not None
        if grouped and shapes[k][0] == shapes[f"{first}.weight"][0]:  # depthwise: channel c feeds channel c
            join([*feeding, k.removesuffix(".weight")])
    dims: dict[str, tuple[str | None, ...]] = {}
    for k, shape in shapes.items():
        owner = k.rpartition(".")[0]
        fed_by = join(sources.get(k, ()))  # a network may hold parameters that it does not use
        if owner not in (*model.layers, model.head):
            found = [fed_by]
        else:
            found = [group(owner) if owner in parent else None, *([fed_by] if k in weights else [])]
        # Pixels of a flattened channel lie side by side.
        fits = [g and n % shapes[f"{g}.weight"][0] == 0 for g, n in zip(found, shape, strict=False)]
        dims[k] = tuple(g if fit else None for g, fit in zip(found, fits, strict=False))
    groups = [n for n in model.layers if group(n) == n]
    members = {g: tuple(n for n in model.layers if group(n) == g) for g in groups}
    return Channels(members, {g: shapes[f"{g}.weight"][0] for g in groups}, dims)


def feature_norms(model: Model) -> tuple[str, ...]:
    """Weights of the norms that scale what the head sees; none where a layer does that itself."""
    if not model.normalised:
        return ()
    try:
        dims = channels(model).dims
    except UserError:  # not known for a network that concatenates
        return ()
    group = dims[f"{model.head}.weight"][1]
    return tuple(k for k, of in dims.items() if of[:1] == (group,) and k.endswith(".weight") and not model.is_layer(k))


def _applications(model: Model) -> dict[str, list[Any]]:
    """The nodes of the graph in which each parameter meets a batch."""
    with torch.enable_grad():
        params = {k: torch.zeros(s).requires_grad_() for k, s in model.shapes(FULL).items()}
        out = model(params, torch.zeros(2, *model.input_shape), FULL)
    names = {id(v): k for k, v in params.items()}
    used: dict[str, list[Any]] = {}
    stack: list[tuple[Any, Any]] = [(out.grad_fn, None)]
    seen = set()
    while stack:
        node, user = stack.pop()  # what is only transposed or reshaped has the user of the result
        if hasattr(node, "variable"):
            used.setdefault(names[id(node.variable)], []).append(user)
        elif (node, user) not in seen:
            seen.add((node, user))
            alone = len(node.next_functions) == 1
            stack += [(child, user if alone else node) for child, _ in node.next_functions if child is not None]
    return used


def _sources(model: Model, node: Any, layer_at: dict[Any, str]) -> set[str]:
    """The layers whose outputs reach a node without passing through another layer."""
    found, stack, seen = set(), [node], {node}
    while stack:
        for child, _ in stack.pop().next_functions:
            if child is None or child in seen:
                continue
            seen.add(child)
            if "Cat" in child.name():
                raise UserError(
                    f"model {model.name!r} concatenates channels: nothing tells which feeds which; choose a method "
                    "that keeps leading channels, such as heterofl"
                )
            if child in layer_at:
                found.add(layer_at[child])
            else:
                stack.append(child)
    return found
