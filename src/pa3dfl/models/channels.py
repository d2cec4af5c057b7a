"""Which dimensions of which parameters are the same channels, read off one backward graph.

Layers whose outputs meet before the next layer (a residual sum, a gate) share their channels, and a norm has
those of what it normalises. A method that lets every layer choose its own channels needs to know.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch

from pa3dfl.errors import UserError
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

    def held(self, model: Model, width: Fraction) -> dict[str, int]:
        """How many channels of each group a width keeps."""
        return {g: model.shapes(width)[f"{g}.weight"][0] for g in self.layers}


@lru_cache(maxsize=16)
def channels(model: Model) -> Channels:
    shapes = model.shapes(FULL)
    weights = {f"{layer}.weight" for layer in (*model.layers, model.head)}
    used = _applications(model)
    layer_at = {used[k]: k.removesuffix(".weight") for k in weights}
    parent = {layer: layer for layer in model.layers}

    def group(layer: str) -> str:
        return layer if parent[layer] == layer else group(parent[layer])

    def join(layers: Iterable[str]) -> str | None:
        """One group of all these layers; the first one names it."""
        roots = sorted({group(n) for n in layers}, key=model.layers.index)
        parent.update(dict.fromkeys(roots, roots[0]) if roots else {})
        return roots[0] if roots else None

    sources = {k: _sources(model, node, layer_at) for k, node in used.items()}
    for k, feeding in sources.items():
        first = join(feeding)
        grouped = k in weights and len(shapes[k]) > 2 and shapes[k][1] == 1 and first is not None
        if grouped and shapes[k][0] == shapes[f"{first}.weight"][0]:  # depthwise: channel c feeds channel c
            join([*feeding, k.removesuffix(".weight")])
    dims = {}
    for k, shape in shapes.items():
        owner, kind = k.rpartition(".")[::2]
        fed_by = join(sources.get(k, ()))  # a network may hold parameters that it does not use
        if owner not in (*model.layers, model.head):
            dims[k] = (fed_by,)
        elif kind == "weight":
            dims[k] = (group(owner) if owner in parent else None, None if shape[1] == 1 else fed_by)
        else:
            dims[k] = (group(owner) if owner in parent else None,)
        for d, g in enumerate(dims[k]):
            flattened = k in weights and len(shape) == 2 and d == 1
            if g and (shape[d] % shapes[f"{g}.weight"][0] if flattened else shape[d] != shapes[f"{g}.weight"][0]):
                raise UserError(
                    f"model {model.name!r}: dimension {d} of {k} is {shape[d]} wide, and {g!r} before it has "
                    f"{shapes[f'{g}.weight'][0]} channels: nothing tells which feeds which; choose a method that keeps "
                    "leading channels, such as heterofl"
                )
    groups = [n for n in model.layers if group(n) == n]
    members = {g: tuple(n for n in model.layers if group(n) == g) for g in groups}
    return Channels(members, {g: shapes[f"{g}.weight"][0] for g in groups}, dims)


def _applications(model: Model) -> dict[str, Any]:
    """The node of the graph in which each parameter meets a batch."""
    with torch.enable_grad():
        params = {k: torch.zeros(s).requires_grad_() for k, s in model.shapes(FULL).items()}
        out = model(params, torch.zeros(2, *model.input_shape), FULL)
    names = {id(v): k for k, v in params.items()}
    parents: dict[Any, list[Any]] = {}
    leaves, stack, seen = {}, [out.grad_fn], {out.grad_fn}
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            leaves[names[id(node.variable)]] = node
        for child, _ in node.next_functions:
            if child is not None:
                parents.setdefault(child, []).append(node)
                if child not in seen:
                    seen.add(child)
                    stack.append(child)
    used = {}
    for k, node in leaves.items():
        # Transposed or reshaped on its own first, perhaps.
        node = parents[node][0]
        while len(node.next_functions) == 1 and node in parents:
            node = parents[node][0]
        used[k] = node
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
