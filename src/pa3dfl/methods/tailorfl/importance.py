"""Which channels a client keeps: their importance to its data, and swaps that make similar clients share channels.

A mask has one row of 0 and 1 per client, over the channels of a layer.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.tree import Tree
from pa3dfl.models import Model
from pa3dfl.models.model import FULL


def learned(model: Model, params: Tree, batches: Iterable[tuple[Tensor, Tensor]], lam: float, rate: float) -> Tree:
    """The importance, in [0, 1], of each output channel of every encoder layer; the full network stays frozen.

    Importances start at 1 and take one step per batch on cross-entropy + λ·(their mean square).
    """
    some = next(iter(params.values()))
    importance = {n: some.new_ones(len(params[f"{n}.weight"])) for n in model.layers}
    for x, y in batches:
        with torch.enable_grad():  # callers may have disabled gradients
            theta = {n: v.detach().requires_grad_() for n, v in importance.items()}
            shrinkage = torch.cat(list(theta.values())).square().mean()
            loss = F.cross_entropy(model(weighted(params, theta), x, FULL), y) + lam * shrinkage
            gradients = torch.autograd.grad(loss, list(theta.values()))
        importance = {n: (v - rate * g).clamp(0, 1) for (n, v), g in zip(importance.items(), gradients, strict=True)}
    return importance


def weighted(params: Tree, importance: Tree) -> Tree:
    """Parameters with which each channel's output is multiplied by its importance."""
    out = dict(params)
    for n, v in importance.items():
        for k in (f"{n}.weight", f"{n}.bias"):
            if k in params:
                out[k] = params[k] * v.view(-1, *[1] * (params[k].ndim - 1))
    return out


def top(scores: Tensor, k: int) -> Tensor:
    """The mask of the k highest scores; among equal scores the first."""
    order = scores.argsort(descending=True, stable=True)
    return torch.zeros_like(scores).scatter(0, order[:k], 1)


def correlation(vectors: Tensor) -> Tensor:
    """The correlation of each pair of rows."""
    rows = F.normalize(vectors - vectors.mean(1, keepdim=True), dim=1)
    return rows @ rows.T


def swapped(masks: Tensor, correlation: Tensor, known: Tensor, limits: list[int]) -> Tensor:
    """Masks after at most `limits` swaps per row, each of which moves overlaps towards correlation · min(n_i, n_j).

    A channel's weight for client i is a sum over the other clients that hold it: the target overlap of both clients
    minus their present one. While a channel that i does not hold weighs more than one that it holds, i swaps the two.
    Only known clients count and change. Clients change one after another: if all changed at once, two similar clients
    would exchange their channels and share no more than before.
    """
    device, masks, correlation, known = masks.device, masks.cpu().clone(), correlation.cpu(), known.cpu()
    counts = masks.sum(1)
    for i in known.nonzero().flatten().tolist():
        mine = masks[i]
        target, others = correlation[i] * counts.clamp(max=float(counts[i])), known.clone()
        others[i] = 0
        for _ in range(limits[i]):
            weight = (others * (target - masks @ mine)) @ masks
            least, gone = weight.masked_fill(mine == 0, torch.inf).min(0)
            most, come = weight.masked_fill(mine == 1, -torch.inf).max(0)
            if most <= least:
                break
            mine[gone], mine[come] = 0, 1
    return masks.to(device)
