"""The guard accepts only updates with the expected names, shapes, types, sizes and norms.

It checks form, not intent: a client can still send wrong values within these bounds (see docs/deploy.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from pa3dfl.core.tree import Tree, zeros
from pa3dfl.core.words import counted
from pa3dfl.methods import Method, Update
from pa3dfl.methods.problem import Client, Task

Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]

# Trained networks have norms of some hundred. An update beyond this norm is damaged or hostile.
LARGEST_NORM = 1e6


@dataclass(frozen=True)
class Rejected:
    client: int
    reason: str


class Guard:
    """Checks updates against one specification per width."""

    def __init__(self, method: Method, task: Task) -> None:
        self.method, self.task = method, task
        self._specs: dict[Fraction, Spec] = {}

    def spec(self, client: Client, shapes: Mapping[Fraction, Tree]) -> Spec:
        """The specification of a client's upload, given the shapes of what clients of each width are sent."""
        if client.width not in self._specs:
            method, task = self.method, self.task
            down = zeros(shapes[client.width], task.device)
            start, fixed = method.begin(task, client, down, method.init_client(task, client))
            upload, _ = method.finish(task, client.width, start, fixed)
            self._specs[client.width] = {k: (tuple(v.shape), task.dtype) for k, v in upload.items()}
        return self._specs[client.width]

    def sift(self, updates: list[Update], shapes: Mapping[Fraction, Tree]) -> tuple[list[Update], list[Rejected]]:
        """The accepted updates, sorted by client, and the rejected ones with their reasons."""
        good: list[Update] = []
        bad: list[Rejected] = []
        for update in sorted(updates, key=lambda u: u.client.id):
            reason = update.refused or objection(update.tree, self.spec(update.client, shapes))
            if reason is None and not 0 < update.n <= update.client.n:
                reason = f"claims {counted(update.n, 'training row')}, declared {update.client.n}"
            if reason is None and good and good[-1].client.id == update.client.id:
                reason = "a second update in the same round"
            if reason is None:
                good.append(update)
            else:
                bad.append(Rejected(update.client.id, reason))
        return good, bad


def objection(tree: Mapping[Any, Any], spec: Spec) -> str | None:
    """The first difference between a tree and its specification, or None."""
    missing, extra = sorted(spec.keys() - tree.keys()), sorted(map(str, tree.keys() - spec.keys()))
    if missing:
        return f"missing key {missing[0]!r}"
    if extra:
        return f"unexpected key {extra[0]!r}"
    for name, (shape, dtype) in spec.items():
        value = tree[name]
        if not isinstance(value, torch.Tensor):
            return f"{name!r} is a {type(value).__name__}, expected a tensor"
        if tuple(value.shape) != shape:
            return f"{name!r} has shape {tuple(value.shape)}, expected {shape}"
        if value.dtype != dtype:
            return f"{name!r} has dtype {value.dtype}, expected {dtype}"
    if not tree:
        return None
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tree.values())))))
    if norm <= LARGEST_NORM:
        return None
    # Finite values beyond the type's square root have an infinite norm too.
    broken = [k for k, v in tree.items() if not torch.isfinite(v).all()]
    if broken:
        return f"{broken[0]!r} has a value that is NaN or infinite"
    return f"norm {norm:.3g} is beyond {LARGEST_NORM:g}"
