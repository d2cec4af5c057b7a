"""FLANC: one bank of filters for all widths, and coefficients of each width that compose its weights from the bank.

Mei et al., "Resource-Adaptive Federated Learning with All-In-One Neural Composition", NeurIPS 2022. A layer
is a bank of R2 = T/4 filters over R1 inputs, applied to every group of R1 inputs, and a 1×1 layer of
coefficients over the results. R1 = S·p_min (S where inputs are not pruned), so that every width has whole groups. Both
together equal one plain weight: W[t, g·R1 + c, k] = Σ_r coef[t, g·R2 + r]·bank[r, c, k].

Loss: cross-entropy + λ·Σ mean-square(BBᵀ − I), B a layer's bank as a matrix of R2 rows. Banks are averaged
over all sampled clients; coefficients, norms and head over the sampled clients of equal width. A width without a
sampled client keeps its values. All means are unweighted, like the authors'. The tested model is the server's.

Choices:

- Every encoder layer is decomposed and has no bias; the head is plain. The authors leave stem and shortcuts whole, but
  the efficiency table of the Pa3dFL paper fits only this.
- Banks start orthogonal. Coefficients start so that the composed weight follows the model's rule; the authors' rule
  relies on batch norms.
- Training composes the weights, with one product per layer. `pa3dfl cost` counts bank and coefficients applied one
  after the other, as the efficiency table does (`engines/accounting.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pa3dfl.core.randomness import generator
from pa3dfl.core.tree import Tree, mean, put, take
from pa3dfl.methods.base import Batch, Method, Update, option
from pa3dfl.methods.common.widths import multiples
from pa3dfl.methods.problem import Client, Problem, Task
from pa3dfl.models import initialisation

BANK, COEF, PLAIN = "bank/", "coef/", "plain/"


@dataclass(frozen=True)
class FLANC(Method):
    name = "flanc"
    summary = "a filter bank shared by all widths, coefficients shared within a width"

    lam: float = option(0.01, "λ, weight of the banks' orthogonality", at_least=0)
    basis: float = option(0.25, "R2/T, filters in a bank for each output of the full layer", above=0)

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        # Inputs are composed in whole groups of R1 = S·p_min.
        return multiples(affordable, p_min)

    def init_server(self, task: Task) -> Tree:
        tree: Tree = {}
        for layer, shape in banks(self, task).items():
            g = generator(task.seed, f"bank:{layer}")
            tree[BANK + layer] = nn.init.orthogonal_(torch.empty(shape), generator=g)
        for width in sorted({c.width for c in task.clients}):
            fresh = task.initial(width)
            for layer, (R2, R1, *kernel) in banks(self, task).items():
                outputs, inputs = fresh[f"{layer}.weight"].shape[:2]
                taps = math.prod(kernel)
                # The entries of an orthogonal bank have a mean square of 1/max(R1·k², R2).
                without_relu = layer in task.model.without_relu
                std = initialisation.deviation(task.model.rule, inputs * taps, without_relu) * math.sqrt(
                    max(R1 * taps, R2) / R2
                )
                g = generator(task.seed, f"coef:{width}:{layer}")
                coefficients = torch.empty(outputs, inputs // R1 * R2).normal_(0, std, generator=g)
                tree[of(width) + COEF + layer] = coefficients
            rest = {k: v for k, v in fresh.items() if k.rpartition(".")[0] not in task.model.layers}
            tree |= put(of(width) + PLAIN, rest)
        return tree

    def extend(self, task: Task, server: Tree) -> Tree:
        like = next(iter(server.values()))
        return {k: v.to(like) for k, v in self.init_server(task).items()} | server

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        return [put(BANK, take(BANK, server)) | take(of(c.width), server) for c in clients]

    def loss(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, draws: Tree) -> Tensor:
        dependence = sum(off_identity(bank) for bank in take(BANK, theta).values())
        return super().loss(problem, width, theta, fixed, batch, draws) + self.lam * dependence

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        server |= put(BANK, mean([take(BANK, u.tree) for u in updates]))
        for width in {u.client.width for u in updates}:
            trees = [u.tree for u in updates if u.client.width == width]
            own = [{k: v for k, v in tree.items() if not k.startswith(BANK)} for tree in trees]
            server |= put(of(width), mean(own))
        return server

    def weights(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        composed = {f"{k}.weight": compose(theta[BANK + k], theta[COEF + k]) for k in problem.model.layers}
        return plain(problem, width, theta) | composed


def compose(bank: Tensor, coef: Tensor) -> Tensor:
    """The plain weight: coefficients (t, groups·R2) times bank (R2, R1, kernel)."""
    return (coef.view(-1, len(bank)) @ bank.flatten(1)).view(len(coef), -1, *bank.shape[2:])


def off_identity(bank: Tensor) -> Tensor:
    """Mean square of BBᵀ − I."""
    B = bank.flatten(1)
    return F.mse_loss(B @ B.T, torch.eye(len(B), device=B.device, dtype=B.dtype))


def of(width: Fraction) -> str:
    """Prefix of a width's own entries. It ends in a colon, because 1/ is also the beginning of 1/16/."""
    return f"{width}:"


def plain(problem: Problem, width: Fraction, theta: Tree) -> Tree:
    """All parameters but the composed weights: norms and head, and zero biases of the composed layers."""
    shapes, some = problem.model.shapes(width), next(iter(theta.values()))
    biases = {f"{layer}.bias" for layer in problem.model.layers} & shapes.keys()
    return take(PLAIN, theta) | {k: some.new_zeros(shapes[k]) for k in biases}


def banks(method: FLANC, problem: Problem) -> dict[str, tuple[int, ...]]:
    """For each layer, the shape (R2, R1, kernel) of its bank; R1 is the layer's number of inputs at p_min."""
    full, narrow = problem.model.shapes(Fraction(1)), problem.model.shapes(problem.p_min)
    outputs = {layer: full[f"{layer}.weight"][0] for layer in problem.model.layers}
    return {k: (max(1, round(t * method.basis)), *narrow[f"{k}.weight"][1:]) for k, t in outputs.items()}
