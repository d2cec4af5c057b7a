"""Trees: tensors by name. Models, updates and states cross every boundary in this form."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

Tree = dict[str, Tensor]
T = TypeVar("T")
K = TypeVar("K")


def wire(tree: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """A copy that shares nothing with its source: detached, contiguous, newly allocated.

    Engines copy at every boundary. Strides and alignment change the last bits of a result: a tree that went over a
    network and one that did not must have the same of both.
    """
    copy = {k: torch.empty(v.shape, dtype=v.dtype, device=v.device) for k, v in tree.items()}
    if copy:
        with torch.no_grad():
            torch._foreach_copy_(list(copy.values()), list(tree.values()))
    return copy


def on_meta(tree: Mapping[str, Tensor]) -> Tree:
    """A tree of the same shapes and types without contents: it takes no memory."""
    return {k: torch.empty(v.shape, dtype=v.dtype, device="meta") for k, v in tree.items()}


def zeros(tree: Mapping[str, Tensor], device: torch.device) -> Tree:
    """A tree of the same shapes and types, all zero."""
    return {k: torch.zeros(v.shape, dtype=v.dtype, device=device) for k, v in tree.items()}


def nbytes(tree: Mapping[str, Tensor]) -> int:
    return sum(v.numel() * v.element_size() for v in tree.values())


def count(tree: Mapping[str, Tensor]) -> int:
    return sum(v.numel() for v in tree.values())


def put(prefix: str, tree: Mapping[str, T]) -> dict[str, T]:
    """The same tree under a prefix; `take` undoes it."""
    return {prefix + k: v for k, v in tree.items()}


def take(prefix: str, tree: Mapping[str, T]) -> dict[str, T]:
    """The part of a tree under a prefix, with the prefix removed."""
    return {k[len(prefix) :]: v for k, v in tree.items() if k.startswith(prefix)}


def leading(full: Tensor, shape: Iterable[int]) -> Tensor:
    """The leading entries of `full` in every dimension: a view of the given shape."""
    return full[tuple(slice(0, n) for n in shape)]


def lerp(a: Mapping[str, Tensor], b: Mapping[str, Tensor], alpha: float) -> Tree:
    """a + α(b − a), exact at both ends."""
    if alpha in (0.0, 1.0):
        return dict(b if alpha else a)
    return dict(zip(a, torch._foreach_lerp(list(a.values()), [b[k] for k in a], alpha), strict=True))


def mean(trees: list[Tree], weights: list[float] | None = None) -> Tree:
    """The (weighted) mean of trees of equal shapes, summed in the order given."""
    w = weights or [1.0] * len(trees)
    total, names = sum(w), list(trees[0])
    out = torch._foreach_mul([trees[0][k] for k in names], w[0] / total)
    for tree, x in zip(trees[1:], w[1:], strict=True):
        torch._foreach_add_(out, [tree[k] for k in names], alpha=x / total)
    return dict(zip(names, out, strict=True))
