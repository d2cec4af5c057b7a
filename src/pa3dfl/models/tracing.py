"""The layers whose outputs reach each parameter, read from one backward graph."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from torch import Tensor


class Fed(NamedTuple):
    """The layers whose outputs a parameter is applied to, and whether those are concatenated."""

    by: frozenset[str]
    concatenated: bool
    parts: int = 0
    """How many parts are concatenated along channels; 0 if that is not known."""


def trace(out: Tensor, params: Mapping[str, Tensor], layers: Collection[str]) -> dict[str, Fed]:
    """For each parameter that `out` depends on. `layers` are the layers that have output channels."""
    used = applications(out.grad_fn, {id(v): k for k, v in params.items()})
    layers_at: dict[Any, set[str]] = {}
    for layer in layers:
        for node in used.get(f"{layer}.weight", ()):
            layers_at.setdefault(node, set()).add(layer)
    fed = {}
    for k, nodes in used.items():
        found = [_sources(node, layers_at) for node in nodes]
        parts = {f.parts for f in found}
        by = frozenset().union(*(f.by for f in found))
        fed[k] = Fed(by, any(f.concatenated for f in found), parts.pop() if len(parts) == 1 else 0)
    return fed


def applications(root: Any, names: dict[int, str]) -> dict[str, list[Any]]:
    """The nodes of the graph in which each parameter is applied to a batch."""
    used: dict[str, list[Any]] = {}
    stack: list[tuple[Any, Any]] = [(root, None)]
    seen = set()
    while stack:
        node, user = stack.pop()  # a parameter that is reshaped or stacked counts as used where the result is used
        if hasattr(node, "variable"):
            if id(node.variable) in names:
                used.setdefault(names[id(node.variable)], []).append(user)
        elif (node, user) not in seen:
            seen.add((node, user))
            through = _of_parameters(node)
            stack += [(child, user if through else node) for child, _ in node.next_functions if child is not None]
    return used


def _of_parameters(node: Any) -> bool:
    """Whether a node is a parameter that is reshaped, or several that are stacked."""
    while len(node.next_functions) == 1 and "Embedding" not in node.name():
        node = node.next_functions[0][0]
        if node is None:
            return False
    if hasattr(node, "variable"):
        return True
    return "Cat" in node.name() and all(c is not None and _of_parameters(c) for c, _ in node.next_functions)


def _sources(node: Any, layers_at: dict[Any, set[str]]) -> Fed:
    """The layers whose outputs reach a node without passing through another layer."""
    found: set[str] = set()
    stack, seen, joints = [node], {node}, []
    while stack:
        for child, _ in stack.pop().next_functions:
            if child is None or child in seen or _of_parameters(child):
                continue
            seen.add(child)
            if "Cat" in child.name():
                joints.append(child)
            if child in layers_at:
                found |= layers_at[child]
            else:
                stack.append(child)
    return Fed(frozenset(found), bool(joints), _parts(joints[0]) if len(joints) == 1 else 0)


def _parts(joint: Any) -> int:
    """How many tensors a node concatenates, if it does so along channels: the second dimension or the last."""
    dim, ndim = getattr(joint, "_saved_dim", None), len(joint._input_metadata[0].shape)
    return len(joint.next_functions) if dim is not None and dim % 2**64 in (1, ndim - 1, 2**64 - 1) else 0
