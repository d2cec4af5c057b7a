"""Packs many small tensors into few vectors, so that a step of SGD takes few operations."""

from itertools import chain

import torch

from pa3dfl.core.tree import Tree
from pa3dfl.engines import local
from pa3dfl.methods import Method

# Tensors of at most this size are packed together; larger ones gain nothing from a copy.
SMALL = 2**16


class Packed:
    """A tree whose small entries lie in few vectors: one for all entries with the same clip group and step scale.

    Autograd gathers the gradients of a vector's entries in one copy; clipping, decay and step are then one operation
    each. The result is the same, because a step treats all numbers of such a group alike, independent of their shapes.
    """

    def __init__(self, method: Method, like: Tree) -> None:
        self.shapes = {k: v.shape for k, v in like.items()}
        self.names: list[list[str]] = []
        self.groups: list[list[local.Scaled]] = []
        for group in local.clipped(method, like):
            by_scale: dict[object, list[str]] = {}
            for k in group:
                by_scale.setdefault(method.step_scale(k) if like[k].numel() <= SMALL else k, []).append(k)
            self.groups.append([])
            for names in by_scale.values():
                # Sizes with many factors of two come first, so that each entry begins at an aligned address.
                names.sort(key=lambda k: -(like[k].numel() & -like[k].numel()))
                vector = torch.cat([like[k].detach().flatten() for k in names])
                self.names.append(names)
                self.groups[-1].append((method.step_scale(names[0]), [vector.requires_grad_()]))

    def tree(self) -> Tree:
        """The entries as views, through which gradients reach the vectors."""
        views: Tree = {}
        for names, (_, [vector]) in zip(self.names, chain(*self.groups), strict=True):
            pieces = vector.split([self.shapes[k].numel() for k in names]) if len(names) > 1 else (vector,)
            views |= {k: piece.view(self.shapes[k]) for k, piece in zip(names, pieces, strict=True)}
        return {k: views[k] for k in self.shapes}
