"""pFedGate: one full global model; each client's gate keeps as many of its blocks as the client's capacity allows.

Chen et al., "Efficient Personalized Federated Learning via Sparse Model-Adaptation", ICML 2023. Every tensor
of parameters, head included, is cut into 5 blocks of consecutive entries. A local gate (switchable norm,
linear layer, batch norm, sigmoid, mean over the batch) scores them; a knapsack keeps blocks with at most
a share s_i = r_i of all entries, multiplied by their scores. The model is averaged, weighted by data sizes. The gate
stays on its client, with a fraction of the model's step size. The tested model is the global model with the client's
gate.

Choices:

- The knapsack is greedy, like the authors': by falling score, with separate budgets for linear layers and the rest. The
  first block of each tensor is always kept, so that a client below 1/5 keeps 1/5. The authors' code charges these
  blocks twice; here the budget is the paper's.
- The first fifth of a head predicts the first fifth of the classes, which bounds the accuracy of clients below 1/5.
  `keep_head` keeps the whole head. It is charged to the budget of linear layers before any other block, and stays even
  if it exceeds that budget.
- Gradients pass the knapsack by a straight-through estimator: in the backward pass every block counts with its score,
  so that a dropped block can return.
- Gate and model step together, and each is clipped by its own norm.
- Both norms use the statistics of the current batch, in tests too, because running statistics would be hidden state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.randomness import generator
from pa3dfl.core.tree import Tree, put, take
from pa3dfl.methods.base import Batch, Method, option
from pa3dfl.methods.problem import Client, Problem, Task

GATE, EPS = "gate/", 1e-5


class Blocks(NamedTuple):
    """The blocks of all parameter tensors, in order."""

    cuts: dict[str, tuple[int, int]]
    """For each parameter tensor, its number of blocks, and the size of all but the last."""
    sizes: Tensor
    """(blocks, 2): entries in linear layers and in the rest; float64, so that sums are exact."""
    always: Tensor
    """Which blocks are kept at any score."""


@dataclass(frozen=True)
class PFedGate(Method):
    name = "pfedgate"
    summary = "a full global model; each client's gate keeps the blocks that the client can afford"

    gate_lr: float = option(0.05, "step size of the gate as a fraction of the model's", at_least=0)
    blocks: int = option(5, "blocks of each parameter tensor", at_least=1)
    keep_head: bool = option(False, "always keep all blocks of the head, so that every class can be predicted")

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        return [Fraction(1)] * len(affordable)

    def init_server(self, task: Task) -> Tree:
        # A new gate scores about ½, so that gated weights start by the model's rule.
        return {k: 2 * v for k, v in task.initial().items()}

    def init_client(self, task: Task, client: Client) -> Tree:
        shape, n = task.model.input_shape, len(cut(self, task).sizes)
        channels = shape[0] if len(shape) > 1 else 1
        # Without a bias, which the batch norm would remove.
        g = generator(task.seed, "gate", client.id)
        linear = torch.empty(n, prod(shape)).uniform_(-1, 1, generator=g) / prod(shape) ** 0.5
        affine = torch.tensor([1.0, 0.0])[:, None]  # scale and shift of both norms
        return {
            "in": affine.repeat(1, channels)[..., None],
            "out": affine.repeat(1, n),
            "linear": linear,
            "mix": torch.ones(2, 3),
        }

    def begin(self, problem: Problem, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        s = torch.tensor(float(client.r), dtype=torch.float64, device=problem.device)
        # Sorted: a tree from a checkpoint may have another order.
        return down | put(GATE, dict(sorted(private.items()))), {GATE + "sparsity": s}

    def loss(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, draws: Tree) -> Tensor:
        return F.cross_entropy(self.predict(problem, width, theta | fixed, batch[0]), batch[1])

    def step_scale(self, name: str) -> float:
        return self.gate_lr if name.startswith(GATE) else 1.0

    def clip_groups(self, theta: Tree) -> list[list[str]]:
        return [[k for k in theta if k.startswith(GATE) == gate] for gate in (False, True)]

    def finish(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return self.weights(problem, width, theta, fixed), take(GATE, theta)

    def weights(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        """The global model without the gate, because which blocks the gate keeps depends on the inputs."""
        return {k: v for k, v in theta.items() if not k.startswith(GATE)}

    def personal(
        self, problem: Problem, width: Fraction, received: Tree, trained: Tree, fixed: Tree
    ) -> dict[float, Tree]:
        return {1.0: trained | fixed}

    def predict(self, problem: Problem, width: Fraction, candidate: Tree, x: Tensor) -> Tensor:
        blocks, scores = cut(self, problem), score(take(GATE, candidate), x)
        kept = keep(scores.detach(), blocks, candidate[GATE + "sparsity"])
        # Forward scores·kept, backward scores.
        factors = scores + (scores * kept - scores).detach()
        gated, at = {}, 0
        for name, (n, size) in blocks.cuts.items():
            w = candidate[name]
            spread = factors[at : at + n].repeat_interleave(size)[: w.numel()]
            gated[name] = w * spread.view(w.shape)
            at += n
        return problem.model(gated, x, width)


def score(gate: Tree, x: Tensor) -> Tensor:
    """The mean score of each block over a batch, in (0, 1)."""
    (in_scale, in_shift), (scale, shift), (v, m) = gate["in"], gate["out"], gate["mix"].softmax(1)
    x = x.to(in_scale.dtype).reshape(len(x), len(in_scale), -1)
    # Switchable norm: a learned mixture of instance, layer and batch statistics.
    axes = ((2,), (1, 2), (0, 2))
    (v0, m0), (v1, m1), (v2, m2) = (torch.var_mean(x, a, correction=0, keepdim=True) for a in axes)
    x = (x - (m[0] * m0 + m[1] * m1 + m[2] * m2)) * (v[0] * v0 + v[1] * v1 + v[2] * v2 + EPS).rsqrt()
    z = F.linear((x * in_scale + in_shift).flatten(1), gate["linear"])
    variance, centre = torch.var_mean(z, 0, correction=0)  # F.batch_norm would refuse a batch of one
    scores: Tensor = ((z - centre) * (variance + EPS).rsqrt() * scale + shift).sigmoid()
    return scores.mean(0)


def keep(scores: Tensor, blocks: Blocks, sparsity: Tensor) -> Tensor:
    """Which blocks are kept: those that always are, then by falling score each block that still fits."""
    given = blocks.sizes * blocks.always[:, None]
    used = given.sum(0)
    budget, fits = torch.maximum(sparsity * blocks.sizes.sum(0), used), []
    order = scores.argsort(descending=True, stable=True)
    # No branch on values, so that an engine can capture the step.
    for size in (blocks.sizes - given)[order].unbind():
        fits.append((used + size <= budget).all())
        used = used + size * fits[-1]
    return blocks.always.scatter(0, order, torch.stack(fits))


@lru_cache(maxsize=16)
def cut(method: PFedGate, problem: Problem) -> Blocks:
    """The blocks of the full model's parameters."""
    shapes, weighted = problem.model.shapes(Fraction(1)), (*problem.model.layers, problem.model.head)
    cuts, rows = {}, []
    for name, shape in shapes.items():
        n, layer = prod(shape), name.rpartition(".")[0]
        size = ceil(n / min(method.blocks, n))
        cuts[name] = (ceil(n / size), size)
        linear = layer in weighted and len(shapes[f"{layer}.weight"]) == 2
        whole = method.keep_head and layer == problem.model.head
        for at in range(0, n, size):
            entries = min(size, n - at)
            rows.append((entries if linear else 0, 0 if linear else entries, whole or at == 0))
    table = torch.tensor(rows, dtype=torch.float64, device=problem.device)
    return Blocks(cuts, table[:, :2], table[:, 2] == 1)
