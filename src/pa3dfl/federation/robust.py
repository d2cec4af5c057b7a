"""Robust aggregation: limits what malicious clients can do with updates of the right form.

The updates are changed before the method aggregates them, so that this works for every method. An entry is *general*
if all clients of a round were sent the same values of it. `median` and `trimmed` replace each client's value of a
general entry by a robust mean over the clients: any mean of equal values is that value. `clip` limits the distance of
an update from what its client was sent to the median of all these distances, for general and personal entries.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pa3dfl.core.tree import Tree
from pa3dfl.methods import Update

# The share of the values that a trimmed mean leaves out at each end. It resists a smaller share of malicious clients.
TRIMMED = 0.2


def robust(rule: str, downs: Sequence[Tree], updates: list[Update]) -> list[Update]:
    """The updates to aggregate. `downs` holds what the same clients were sent."""
    if rule == "mean" or len(updates) < 3:
        return updates
    if rule == "clip":
        return clipped(downs, updates)
    names = general(downs, updates)
    centre = {k: centre_of(rule, torch.stack([u.tree[k] for u in updates])) for k in names}
    # Copies: aggregation may work in place.
    return [replace(u, tree=u.tree | {k: v.clone() for k, v in centre.items()}) for u in updates]


def general(downs: Sequence[Tree], updates: Sequence[Update]) -> list[str]:
    return [
        k
        for k in downs[0]
        if all(k in u.tree for u in updates)
        and all(k in d and d[k].shape == downs[0][k].shape and torch.equal(d[k], downs[0][k]) for d in downs[1:])
    ]


def centre_of(rule: str, values: Tensor) -> Tensor:
    """The robust mean over clients (the first dimension) of each entry."""
    ordered, n = values.sort(0).values, len(values)
    if rule == "median":  # of an even number the mean of the middle two; torch.median takes the lower
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    cut = int(n * TRIMMED)
    return ordered[cut : n - cut].mean(0)


def clipped(downs: Sequence[Tree], updates: list[Update]) -> list[Update]:
    moves = [{k: u.tree[k] - d[k] for k in d if k in u.tree} for d, u in zip(downs, updates, strict=True)]
    norms = torch.tensor(
        [float(torch.stack(torch._foreach_norm(list(m.values()))).norm()) if m else 0.0 for m in moves]
    )
    limit = float(centre_of("median", norms))
    out = []
    for down, move, norm, update in zip(downs, moves, norms.tolist(), updates, strict=True):
        if norm > limit:
            shorter = {k: down[k] + v * (limit / norm) for k, v in move.items()}
            update = replace(update, tree=update.tree | shorter)
        out.append(update)
    return out
