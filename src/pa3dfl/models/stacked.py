"""Stacked parameters, split into the ordinary ones that they consist of, and stacked again.

The gates of a recurrent layer are several weights in one parameter, and so are the projections of attention. The tree
has an entry for each of them, so that its leading rows and columns are a narrower layer. For a call they are stacked
again (`functional.py`).

A dimension may consist of several blocks: heads, two directions, positions of a flattened sequence. Each block shrinks
separately. With k blocks the tree has entry j of block i at j·k + i, so its leading entries are those of every block.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pa3dfl.core.tree import Tree

GATES = {"LSTM": "ifgo", "GRU": "rzn"}
PROJECTIONS = ("q", "k", "v")
Orders = dict[str, tuple[int, ...]]
"""For each entry of the tree, how many blocks each leading dimension has."""


class Stacks(NamedTuple):
    """What is stacked in a network."""

    keys: dict[str, tuple[str, ...]]
    """For each parameter, the entries of the tree that it consists of."""
    layers: dict[str, tuple[str, ...]]
    """For each module, its layers."""
    bound: list[tuple[str, ...]]
    """Layers whose outputs are the same channels."""
    heads: dict[str, int]
    """For each module with attention, how many heads it has."""


def stacks(network: nn.Module) -> Stacks:
    found = Stacks({}, {}, [], {})
    for prefix, m in network.named_modules():
        dot = f"{prefix}." if prefix else ""
        if isinstance(m, (nn.RNNBase, nn.RNNCellBase)):
            layers, own = _recurrent(m, dot)
        elif isinstance(m, nn.MultiheadAttention):
            layers, own = _attention(m, dot)
            found.heads[prefix] = m.num_heads
        else:
            continue
        found.layers[prefix] = tuple(n for group in layers for n in group)
        found.bound.extend(layers)
        found.keys.update(own)
    return found


def _recurrent(m: nn.Module, dot: str) -> tuple[list[tuple[str, ...]], dict[str, tuple[str, ...]]]:
    kind = getattr(m, "mode", type(m).__name__)
    kind = next((k for k in GATES if kind.startswith(k)), "")
    keys: dict[str, tuple[str, ...]] = {}
    groups: dict[str, list[str]] = {}
    for name, p in m._parameters.items():
        if p is None:
            continue
        what, _, layer = name.partition("_")  # weight_ih_l0_reverse
        gates = [f".{g}" for g in GATES[kind]] if kind and not layer.startswith("hr") else [""]
        keys[dot + name] = tuple(f"{dot}{layer}{g}.{what}" for g in gates)
        if what == "weight":
            # The outputs of a projection are the next inputs; gates have their own channels.
            same = layer if layer.startswith("hr") else layer[3:]
            groups.setdefault(same, []).extend(f"{dot}{layer}{g}" for g in gates)
    return [tuple(g) for g in groups.values()], keys


def _attention(m: nn.MultiheadAttention, dot: str) -> tuple[list[tuple[str, ...]], dict[str, tuple[str, ...]]]:
    keys = {}
    if m.in_proj_weight is None:
        keys = {f"{dot}{q}_proj_weight": (f"{dot}{q}.weight",) for q in PROJECTIONS}
    else:
        keys = {f"{dot}in_proj_weight": tuple(f"{dot}{q}.weight" for q in PROJECTIONS)}
    if m.in_proj_bias is not None:
        keys[f"{dot}in_proj_bias"] = tuple(f"{dot}{q}.bias" for q in PROJECTIONS)
    return [tuple(f"{dot}{q}" for q in PROJECTIONS), (f"{dot}out_proj",)], keys


def of_heads(module: str, heads: int) -> Orders:
    """Blocks of a module's entries, where its heads shrink."""
    dot = f"{module}." if module else ""
    rows = {f"{dot}{q}.{what}": (heads,) for q in PROJECTIONS for what in ("weight", "bias")}
    more = {f"{dot}bias_{q}": (1, 1, heads) for q in "kv"}
    return rows | more | {f"{dot}out_proj.weight": (1, heads)}


def stack(weights: Mapping[str, Tensor], keys: tuple[str, ...], orders: Orders) -> Tensor:
    """A module's parameter, made from entries of the tree."""
    if len({orders.get(k) for k in keys}) > 1:
        return torch.cat([stack(weights, (k,), orders) for k in keys])
    t = weights[keys[0]] if len(keys) == 1 else torch.cat([weights[k] for k in keys])
    for d, k in enumerate(orders.get(keys[0], ())):
        if k > 1:  # all pieces at once: in a small network every operation counts
            before, after, pieces = t.shape[:d], t.shape[d + 1 :], 1 if d else len(keys)
            t = t.reshape(*before, pieces, -1, k, *after).transpose(d + 1, d + 2).reshape(*before, -1, *after)
    return t


def split(parameter: Tensor, keys: tuple[str, ...], orders: Orders) -> Tree:
    """Entries of the tree, made from a module's parameter."""
    pieces = parameter.chunk(len(keys)) if len(keys) > 1 else (parameter,)
    return {k: _in_tree_order(p, orders.get(k, ())) for k, p in zip(keys, pieces, strict=True)}


def _in_tree_order(t: Tensor, blocks: tuple[int, ...]) -> Tensor:
    for d, k in enumerate(blocks):
        if k > 1:
            t = t.unflatten(d, (k, -1)).transpose(d, d + 1).flatten(d, d + 1)
    return t


def in_tree_order(features: Tensor, blocks: int) -> Tensor:
    """A layer's inputs with the last dimension in the order of the tree."""
    return features.unflatten(-1, (blocks, -1)).transpose(-1, -2).flatten(-2) if blocks > 1 else features
