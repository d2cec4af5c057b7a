"""Which channels a client keeps: how important they are to its data, and how clients come to share them.

Masks are 0/1 rows, one per client, over the channels of a layer.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.tree import Tree
from pa3dfl.models import Model
from pa3dfl.models.width import FULL


def learned(model: Model, params: Tree, batches: Iterable[tuple[Tensor, Tensor]], lam: float, rate: float) -> Tree:
    """One number in [0, 1] per output channel of every encoder layer; the full network stays frozen.

    They start at 1 and descend cross-entropy + λ·(their mean square), a step per batch.
    """
    some = next(iter(params.values()))
    importance = {n: some.new_ones(len(params[f"{n}.weight"])) for n in model.layers}
    for x, y in batches:
        with torch.enable_grad():  # costs are taken without
            theta = {n: v.detach().requires_grad_() for n, v in importance.items()}
            shrinkage = torch.cat(list(theta.values())).square().mean()
            loss = F.cross_entropy(model(weighted(params, theta), x, FULL), y) + lam * shrinkage
            gradients = torch.autograd.grad(loss, list(theta.values()))
        importance = {n: (v - rate * g).clamp(0, 1) for (n, v), g in zip(importance.items(), gradients, strict=True)}
    return importance


def weighted(params: Tree, importance: Tree) -> Tree:
    """Parameters whose layers put out their channels times their importance."""
    out = dict(params)
    for n, v in importance.items():
        for k in (f"{n}.weight", f"{n}.bias"):
            if k in params:
                out[k] = params[k] * v.view(-1, *[1] * (params[k].ndim - 1))
    return out


def top(scores: Tensor, k: int) -> Tensor:
    """The mask of the k highest scores; of equal ones the leading."""
    order = scores.argsort(descending=True, stable=True)
    return torch.zeros_like(scores).scatter(0, order[:k], 1)


def correlation(vectors: Tensor) -> Tensor:
    """Cosines between the centred rows."""
    rows = F.normalize(vectors - vectors.mean(1, keepdim=True), dim=1)
    return rows @ rows.T


def swapped(masks: Tensor, correlation: Tensor, known: Tensor, limits: list[int]) -> Tensor:
    """Masks after at most `limits` swaps per row, each moving overlaps toward correlation · min(n_i, n_j).

    A channel's weight for client i is the sum, over the others that hold it, of what is missing to the overlap
    that i and they should have. While an absent channel weighs more than a held one, they change places. Only
    known clients count or move. One client follows another: if all moved at once, two that are alike would
    exchange their channels and be as far apart as before.
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
