"""HeteroFL: nested submodels of halving widths, each entry averaged over the clients that hold it.

Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients", ICLR 2021. The server keeps the full model; a client of capacity r trains the leading channels at
the largest width 0.5^i with 0.25^i ≤ r. Two aids of the paper:

- the Scaler divides the outputs of each encoder layer, before a norm if there is one, so that narrow models have
  activations of the same magnitude as the full one. Layers are linear in their weights, so the weights are divided
  instead. The authors divide all layers by p (`divide="all"`). The default divides by √p, and only weights whose
  inputs are pruned: with independent weights, as at the start, a sum over p·S inputs is √p times a sum over S.
  Divided by p, each layer of a network without norms enlarges its outputs by √(1/p): on the CNN for Fashion-MNIST the
  first loss at p = 1/16 is 372 (3.5 at p = 1);
- masked cross-entropy sets the logits of classes that a client does not own to 0, in training only, and leaves
  their rows of the head out of the average. The client therefore tells the server which classes it trains on.

The mean is weighted by data sizes, so that without the two aids equal capacities give FedAvg. An entry that no client
trained in a round keeps its value. The tested model is the client's slice of the global model with the Scaler of its
training. The authors use the Scaler in training only, because they test the full model, whose Scaler is 1; a slice of
a network without norms computes another function without it (65.6% instead of 87.3% on Fashion-MNIST).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.tree import Tree
from pa3dfl.methods.base import Batch, Method, Update, option
from pa3dfl.methods.common.heads import split_head
from pa3dfl.methods.common.slicing import cut, entrywise_mean, leading_places, merge
from pa3dfl.methods.problem import Client, Problem, Task

OWNED = "classes/owned"
DIVISIONS = ("root", "all")
# A shortcut is added to a scaled branch and is not scaled itself. Only its name identifies it.
SHORTCUTS = ("shortcut", "downsample", "skip")


@dataclass(frozen=True)
class HeteroFL(Method):
    name = "heterofl"
    summary = "leading channels at halving widths, entry-wise mean over the clients that hold them"

    scaler: bool = option(True, "divide the output of encoder layers, so that narrow ones have the full magnitude")
    divide: str = option(
        "root", "what the Scaler divides: by √p where inputs are pruned, or all layers by p", choices=DIVISIONS
    )
    masked: bool = option(True, "leave classes that a client does not own out of its loss and of its average")

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        return [max(halved(p), p_min) for p in affordable]

    def init_server(self, task: Task) -> Tree:
        return task.initial()

    def init_client(self, task: Task, client: Client) -> Tree:
        if not self.masked:
            return {}
        labels = task.data.y[task.data.rows(client.id, "train").to(task.data.y.device)]
        owned = torch.zeros(task.model.classes, device=labels.device)
        owned[labels.long()] = 1
        return {OWNED: owned.to(task.dtype)}

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        return [cut(server, leading_places(problem.model, c.width)) for c in clients]

    def begin(self, problem: Problem, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return down, private

    def loss(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, draws: Tree) -> Tensor:
        x, y = batch
        logits = problem.model(self.weights(problem, width, theta, fixed), x, width)
        if self.masked:
            logits = logits.masked_fill(fixed[OWNED] == 0, 0)
        return F.cross_entropy(logits, y)

    def weights(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        return scaled(problem, width, theta, self.divide) if self.scaler else theta

    def finish(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return theta | fixed, fixed

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        places = [leading_places(task.model, u.client.width) for u in updates]
        rest, head = split_head(task.model, server) if self.masked else (server, {})
        server |= merge(rest, [u.tree for u in updates], places, [u.n for u in updates])
        for k, old in head.items():
            one_per_row = (-1, *[1] * (old.ndim - 1))
            weights = [u.n * (u.tree[OWNED] > 0).to(old.dtype).view(one_per_row) for u in updates]
            server[k] = entrywise_mean(old, [u.tree[k] for u in updates], [p[k] for p in places], weights)
        return server


def halved(p: Fraction) -> Fraction:
    """The largest 0.5^i that is at most p."""
    width = Fraction(1)
    while width > p:
        width /= 2
    return width


def scaled(problem: Problem, width: Fraction, theta: Tree, divide: str) -> Tree:
    """Weights that enlarge the encoder's outputs, so that narrow layers have the magnitude of full ones."""
    layers = [n for n in problem.model.layers if not any(s in n.lower() for s in SHORTCUTS)]
    if divide == "all":
        names = [f"{n}.{kind}" for n in layers for kind in ("weight", "bias") if f"{n}.{kind}" in theta]
        return theta | {k: theta[k] * float(1 / width) for k in names}
    full, own = problem.model.shapes(Fraction(1)), problem.model.shapes(width)
    pruned = [k for n in layers if own[k := f"{n}.weight"][1] < full[k][1]]
    return theta | {k: theta[k] * float(1 / width) ** 0.5 for k in pruned}
