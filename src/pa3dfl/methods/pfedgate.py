"""pFedGate: one full global model, of which each client's gate keeps the blocks that its capacity allows.

Chen et al., "Efficient Personalized Federated Learning via Sparse Model-Adaptation", ICML 2023. Every tensor
of parameters, head included, is cut into 5 blocks of consecutive entries. A local gate (switchable norm,
linear layer, batch norm, sigmoid, mean over the batch) scores them; a knapsack keeps blocks of at most
s_i = r_i of all entries, multiplied by their scores. The model is averaged by data sizes; the gate stays on
its client, with a fraction of the model's step size. Tested is the global model through the client's gate.

Choices. The knapsack is the greedy one of the authors' code, by falling score, with separate budgets for linear
layers and the rest; first blocks of tensors are always kept, so that a client below 1/5 keeps 1/5. (That code
charges them twice; here the budget is the paper's.) The first fifth of a head predicts the first fifth of the
classes, which bounds the accuracy of clients below 1/5. With `keep_head` the whole head is kept: it is charged to
the budget of linear layers before any block that competes by its score, and stays even if it exceeds that budget.
The knapsack is passed straight through: backward, every block has its score, so that a dropped one can return.
Gate and model step together, each clipped by itself. Both norms use the batch at hand, in tests too: running
statistics would be hidden state.
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

from pa3dfl.core.rng import generator, key
from pa3dfl.core.tree import Tree, leading, mean, put, take
from pa3dfl.methods.base import Batch, Method, Update, option
from pa3dfl.methods.task import Client, Task

GATE, EPS = "gate/", 1e-5


class Blocks(NamedTuple):
    cuts: dict[str, tuple[int, int]]  # how many a tensor of parameters has, and the size of all but its last
    sizes: Tensor  # float64 (sums are exact), in one column for linear layers and one for the rest
    always: Tensor  # kept whatever they score


@dataclass(frozen=True)
class PFedGate(Method):
    name = "pfedgate"
    summary = "a full global model; each client's gate keeps the blocks that it can afford"

    gate_lr: float = option(0.05, "step size of the gate as a fraction of the model's", at_least=0)
    blocks: int = option(5, "blocks of each parameter tensor", at_least=1)
    keep_head: bool = option(False, "always keep all blocks of the head, so that every class can be predicted")

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        return [Fraction(1)] * len(affordable)

    def init_server(self, task: Task) -> Tree:
        # A fresh gate scores about ½, so that gated weights start by the model's rule.
        return {k: 2 * v for k, v in task.model.init(Fraction(1), key(task.seed, "model")).items()}

    def init_client(self, task: Task, client: Client) -> Tree:
        shape, n = task.model.input_shape, len(cut(self, task).sizes)
        g, one = generator(task.seed, "gate", client.id), torch.tensor([1.0, 0.0])[:, None]  # scale, shift
        # Without a bias, which the batch norm would take away.
        linear = torch.empty(n, prod(shape)).uniform_(-1, 1, generator=g) / prod(shape) ** 0.5
        ends = {"in": one.repeat(1, shape[0] if len(shape) > 1 else 1)[..., None], "out": one.repeat(1, n)}
        return ends | {"linear": linear, "mix": torch.ones(2, 3)}

    def download(self, task: Task, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        return [server for _ in clients]

    def begin(self, task: Task, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        s = torch.tensor(float(client.r), dtype=torch.float64, device=task.device)
        # Sorted: what was read from a checkpoint may have another order.
        return down | put(GATE, dict(sorted(private.items()))), {GATE + "sparsity": s}

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, noise: Tree) -> Tensor:
        return F.cross_entropy(self.predict(task, width, theta | fixed, batch[0]), batch[1])

    def step_scale(self, name: str) -> float:
        return self.gate_lr if name.startswith(GATE) else 1.0

    def clip_groups(self, theta: Tree) -> list[list[str]]:
        return [[k for k in theta if k.startswith(GATE) == gate] for gate in (False, True)]

    def finish(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return self.weights(task, width, theta, fixed), take(GATE, theta)

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        return mean([u.tree for u in updates], [u.n for u in updates])

    def weights(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        """The global model before its gate: what is kept of it depends on the inputs."""
        return {k: v for k, v in theta.items() if not k.startswith(GATE)}

    def personal(self, task: Task, width: Fraction, received: Tree, trained: Tree, fixed: Tree) -> dict[float, Tree]:
        return {1.0: trained | fixed}

    def predict(self, task: Task, width: Fraction, candidate: Tree, x: Tensor) -> Tensor:
        blocks, scores = cut(self, task), score(take(GATE, candidate), x)
        kept = keep(scores.detach(), blocks, candidate[GATE + "sparsity"])
        factors = scores + (scores * kept - scores).detach()
        gated, at = {}, 0
        for name, (n, size) in blocks.cuts.items():
            w, spread = candidate[name], factors[at : at + n].repeat_interleave(size)
            gated[name], at = w * spread[: w.numel()].view(w.shape), at + n
        return task.model(gated, x, width)

    def encoder_forward(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, x: Tensor) -> Tensor:
        """As the Pa3dFL paper charges it: the gate, and for a sparsity of p² a model of width p."""
        score(take(GATE, theta), x)
        narrow = {k: leading(theta[k], shape) for k, shape in task.model.shapes(width).items()}
        return task.model.features(narrow, x, width)


def score(gate: Tree, x: Tensor) -> Tensor:
    """The mean score of each block over a batch, in (0, 1)."""
    (in_scale, in_shift), (scale, shift), (v, m) = gate["in"], gate["out"], gate["mix"].softmax(1)
    x = x.to(in_scale.dtype).reshape(len(x), len(in_scale), -1)
    # Switchable norm: a learned mixture of the moments of an input's channel, an input, and a channel.
    each = ((2,), (1, 2), (0, 2))
    (v0, m0), (v1, m1), (v2, m2) = (torch.var_mean(x, a, correction=0, keepdim=True) for a in each)
    x = (x - (m[0] * m0 + m[1] * m1 + m[2] * m2)) * (v[0] * v0 + v[1] * v1 + v[2] * v2 + EPS).rsqrt()
    z = F.linear((x * in_scale + in_shift).flatten(1), gate["linear"])
    variance, centre = torch.var_mean(z, 0, correction=0)  # F.batch_norm would refuse a batch of one
    return ((z - centre) * (variance + EPS).rsqrt() * scale + shift).sigmoid().mean(0)


def keep(scores: Tensor, blocks: Blocks, sparsity: Tensor) -> Tensor:
    """Which blocks are kept: those that always are, then by falling score whatever still fits."""
    given = blocks.sizes * blocks.always[:, None]
    used = given.sum(0)
    budget, fits = torch.maximum(sparsity * blocks.sizes.sum(0), used), []
    order = scores.argsort(descending=True, stable=True)
    # No branch on values: a step can be captured, and clients stacked.
    for size in (blocks.sizes - given)[order].unbind():
        fits.append((used + size <= budget).all())
        used = used + size * fits[-1]
    return blocks.always.scatter(0, order, torch.stack(fits))


@lru_cache(maxsize=16)
def cut(method: PFedGate, task: Task) -> Blocks:
    shapes, weighted = task.model.shapes(Fraction(1)), (*task.model.layers, task.model.head)
    cuts, rows = {}, []
    for name, shape in shapes.items():
        n, owner = prod(shape), name.rpartition(".")[0]
        size = ceil(n / min(method.blocks, n))
        cuts[name] = (ceil(n / size), size)
        linear = owner in weighted and len(shapes[f"{owner}.weight"]) == 2
        sizes = [min(size, n - at) for at in range(0, n, size)]
        whole = method.keep_head and owner == task.model.head
        rows += [(linear * m, (not linear) * m, whole or i == 0) for i, m in enumerate(sizes)]
    table = torch.tensor(rows, dtype=torch.float64, device=task.device)
    return Blocks(cuts, table[:, :2], table[:, 2] == 1)
