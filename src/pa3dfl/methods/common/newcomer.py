"""A newcomer of a trained hyper-network: its embedding is learned, everything else is frozen."""

import torch
from torch import Tensor

from pa3dfl.core.tree import Tree, leading
from pa3dfl.methods.common.hypernetwork import ABSENT, NEWCOMER, HyperNetwork

# More than L-BFGS needs for some tens of numbers.
STEPS = 100


def arrive(tree: Tree) -> Tree:
    """A newcomer starts with the mean embedding of the clients that have joined."""
    here = tree["embeddings"]
    return {NEWCOMER: (here[tree[ABSENT] == 0] if ABSENT in tree else here).mean(0)}


def settle(network: HyperNetwork, tree: Tree, trained: Tree) -> Tree:
    """The embedding that generates the parameters closest to those that the newcomer trained.

    An output is W m + b, where m is the mix that follows from the embedding, so that ½‖W m + b − θ‖² is
    ½ mᵀ(WᵀW)m − mᵀWᵀ(θ − b) plus a constant. The decoders are therefore read once, whatever the number of steps.
    """
    squares, slopes = [], []
    with torch.no_grad():
        for name, out in network.outputs.items():
            own = trained[name]
            weight = leading(tree[f"decoder.{name}.weight"].view(*out.shape, -1), own.shape).reshape(own.numel(), -1)
            bias = leading(tree[f"decoder.{name}.bias"].view(out.shape), own.shape)
            squares.append(weight.T @ weight)
            slopes.append((own - bias).flatten() @ weight)
    square, slope = torch.stack(squares), torch.stack(slopes)
    embedding = tree[NEWCOMER].clone().requires_grad_()
    search = torch.optim.LBFGS([embedding], max_iter=STEPS, line_search_fn="strong_wolfe")

    def distance() -> Tensor:
        mix = network.mixes(tree | {NEWCOMER: embedding}, [0])[:, 0]
        loss = (torch.einsum("lh,lhk,lk->l", mix, square, mix) / 2 - (mix * slope).sum(1)).sum()
        (embedding.grad,) = torch.autograd.grad(loss, [embedding])
        return loss

    search.step(distance)  # type: ignore[no-untyped-call, unused-ignore]
    return {NEWCOMER: embedding.detach()}
