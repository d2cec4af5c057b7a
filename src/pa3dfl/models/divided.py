"""Layers whose outputs a network divides before another layer takes them: into heads, into q, k and v, into gates.

Each piece shrinks separately, as in PyTorch's own attention and recurrent layers. The backward graph of one batch, at
full width and at a narrow one, shows which layers these are.
"""

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

from torch import Tensor

from pa3dfl.core.errors import UserError
from pa3dfl.models.tracing import applications

Stages = tuple[int, ...]
"""Numbers of pieces, from the first division on: (3, 4) is q, k and v, each of four heads."""

VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Unflatten")
SPLITS = ("Split", "SplitWithSizes", "Chunk", "Slice", "Narrow", "Glu", "Unbind")
MIXES = ("Mm", "Bmm", "Addmm", "ScaledDot", "Softmax", "LogSoftmax", "Cat", "Embedding", "Convolution", "Permute")


def divided(name: str, out: Tensor, params: Mapping[str, Tensor], layers: Collection[str]) -> dict[str, Stages]:
    """How the outputs of the linear layers among `layers` are divided; layers without a division are left out."""
    used = applications(out.grad_fn, {id(v): k for k, v in params.items()})
    of_layers = {node for k, nodes in used.items() if params[k].ndim > 1 for node in nodes}
    users = _users(out.grad_fn)
    found: dict[str, Stages] = {}
    for layer in layers:
        weight = params.get(f"{layer}.weight")
        if weight is None or weight.ndim != 2:
            continue
        ways: set[Stages] = set()
        for node in used.get(f"{layer}.weight", ()):
            _follow(node, weight.shape[0], (), users, of_layers, ways, set())
        ways.discard(())
        longest = max(ways, key=len, default=())
        if any(way != longest[: len(way)] or 0 in way for way in ways):
            raise UserError(
                f"model {name!r} divides the outputs of {layer!r} unevenly or in several ways: use one layer for each "
                "part"
            )
        if longest:
            found[layer] = longest
    return found


def pieces(name: str, layer: str, size: int, full: Stages, narrow: Stages) -> tuple[int, int]:
    """How many blocks of a layer's outputs shrink, and how many outputs belong together."""
    same = [a == b for a, b in zip(full, narrow, strict=False)]
    if len(full) != len(narrow) or not all(same[:-1]):
        raise UserError(f"model {name!r} divides the outputs of {layer!r} in another way at a narrow width")
    if same[-1]:
        return prod(full), prod(full)
    blocks = prod(full[:-1])  # whole pieces of the last division are dropped
    return blocks, blocks * (size // prod(full))


def _users(root: Any) -> dict[Any, list[Any]]:
    """For each node of the graph, the nodes that use its output."""
    users: dict[Any, list[Any]] = {}
    stack, seen = [root], {root}
    while stack:
        node = stack.pop()
        for child, _ in node.next_functions:
            if child is not None:
                users.setdefault(child, []).append(node)
                if child not in seen:
                    seen.add(child)
                    stack.append(child)
    return users


def _follow(
    node: Any, size: int, stages: Stages, users: Mapping[Any, list[Any]], stops: Collection[Any], ways: set[Stages],
    seen: set[tuple[Any, int]],
) -> None:  # fmt: skip
    """Add to `ways` how the last dimension, of this size, is divided on the way to the next layers."""
    for user in users.get(node, ()):
        kind = user.name().partition("Backward")[0]
        if user in stops or kind.startswith(MIXES) or (user, size) in seen:
            ways.add(stages)
            continue
        seen.add((user, size))
        for shape in {tuple(m.shape) for m in user._input_metadata}:
            if shape and shape[-1] == size:
                _follow(user, size, stages, users, stops, ways, seen)
            elif kind in VIEWS and _splits_last(shape, size):
                ways.add((*stages, size // shape[-1]))
            elif kind in SPLITS and shape and 0 < shape[-1] < size and getattr(user, "_saved_step", 1) == 1:
                n = size // shape[-1] if size % shape[-1] == 0 else 0  # 0: pieces of several sizes
                _follow(user, shape[-1], (*stages, n), users, stops, ways, seen)
            else:
                ways.add(stages)


def _splits_last(shape: tuple[int, ...], size: int) -> bool:
    """Whether a view splits the last dimension into several."""
    return any(prod(shape[-k:]) == size for k in range(2, len(shape) + 1)) and 1 < shape[-1] < size
