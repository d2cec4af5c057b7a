"""FLANC: one bank of filters for all widths, composed by coefficients that belong to one width each.

Mei et al., "Resource-Adaptive Federated Learning with All-In-One Neural Composition", NeurIPS 2022. A layer
is a bank of R2 = T/4 filters over R1 inputs, applied to every group of R1 inputs, and a 1×1 layer of
coefficients over the results. R1 = S·p_min (S where inputs are not pruned): every width has whole groups. It
equals one plain weight: W[t, g·R1 + c, k] = Σ_r coef[t, g·R2 + r]·bank[r, c, k].

Loss: cross-entropy + λ·Σ mean-square(BBᵀ − I), B a layer's bank as a matrix of R2 rows. Banks are averaged
over all sampled clients; coefficients, norms and head over those of equal width, and a width that nobody had
keeps its values. All means are unweighted, as the authors' are. Tested is the server's model.

Choices: every encoder layer is decomposed (the authors leave stem and shortcuts whole; the efficiency table
of the Pa3dFL paper fits only this) and has no bias; the head is plain. Banks start orthogonal, and coefficients so
that the composed weight follows the model's rule (the authors' rule relies on batch norms). Training composes
weights, one product a layer; `encoder_forward` applies bank and coefficients in turn: that is what `pa3dfl cost`
counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pa3dfl.core.rng import generator, key
from pa3dfl.core.tree import Tree, mean, put, take
from pa3dfl.methods.base import Batch, Method, Update, option
from pa3dfl.methods.common.contraction import Apply, Factored, Window
from pa3dfl.methods.task import Client, Task
from pa3dfl.models import start

BANK, COEF, PLAIN = "bank/", "coef/", "plain/"


@dataclass(frozen=True)
class FLANC(Method):
    name = "flanc"
    summary = "a filter bank shared by all widths, coefficients shared within a width"

    lam: float = option(0.01, "λ, weight of the banks' orthogonality", at_least=0)
    basis: float = option(0.25, "R2/T, filters in a bank for each output of the full layer", above=0)

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        # Inputs are composed in whole groups of R1 = S·p_min.
        return [p // p_min * p_min for p in affordable]

    def init_server(self, task: Task) -> Tree:
        tree: Tree = {}
        for layer, shape in banks(self, task).items():
            g = generator(task.seed, f"bank:{layer}")
            tree[BANK + layer] = nn.init.orthogonal_(torch.empty(shape), generator=g)
        for width in sorted({c.width for c in task.clients}):
            fresh = task.model.init(width, key(task.seed, "model"))
            for layer, (R2, R1, *kernel) in banks(self, task).items():
                t, s, taps = *fresh[f"{layer}.weight"].shape[:2], math.prod(kernel)
                # Entries of an orthogonal bank have a mean square of 1/max(R1·k², R2).
                std = start.deviation(task.model.rule, s * taps, layer in task.model.calm) * math.sqrt(
                    max(R1 * taps, R2) / R2
                )
                g = generator(task.seed, f"coef:{width}:{layer}")
                tree[of(width) + COEF + layer] = torch.empty(t, s // R1 * R2).normal_(0, std, generator=g)
            rest = {k: v for k, v in fresh.items() if k.rpartition(".")[0] not in task.model.layers}
            tree |= put(of(width) + PLAIN, rest)
        return tree

    def extend(self, task: Task, server: Tree) -> Tree:
        return {k: v.to(next(iter(server.values()))) for k, v in self.init_server(task).items()} | server

    def download(self, task: Task, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        return [put(BANK, take(BANK, server)) | take(of(c.width), server) for c in clients]

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, noise: Tree) -> Tensor:
        dependence = sum(off_identity(bank) for bank in take(BANK, theta).values())
        return super().loss(task, width, theta, fixed, batch, noise) + self.lam * dependence

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        server |= put(BANK, mean([take(BANK, u.tree) for u in updates]))
        for width in {u.client.width for u in updates}:
            own = [u.tree for u in updates if u.client.width == width]
            server |= put(of(width), mean([{k: v for k, v in t.items() if not k.startswith(BANK)} for t in own]))
        return server

    def weights(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        composed = {f"{k}.weight": compose(theta[BANK + k], theta[COEF + k]) for k in task.model.layers}
        return plain(task, width, theta) | composed

    def encoder_forward(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, x: Tensor) -> Tensor:
        weights = {f"{k}.weight": Composed("factors", theta[BANK + k], theta[COEF + k]) for k in task.model.layers}
        return task.model.features(plain(task, width, theta) | weights, x, width)

    def is_head(self, task: Task, name: str) -> bool:
        return name.startswith(PLAIN + task.model.head + ".")


class Composed(Factored):
    """Bank and coefficients as a weight. By factors, groups of inputs stand beside each other as rows of a batch."""

    bank: Tensor
    coef: Tensor

    def __new__(cls, order: str, bank: Tensor, coef: Tensor) -> Self:
        made = super().__new__(cls, order, (len(coef), coef.shape[1] // len(bank) * bank.shape[1], *bank.shape[2:]))
        made.bank, made.coef = bank, coef
        return made

    def recover(self, window: Window = ()) -> Tensor:
        return compose(self.bank[(slice(None),) * 2 + window], self.coef)

    def in_turn(self, x: Tensor, window: Window, spatial: Apply, pointwise: Apply) -> Tensor:
        if self.bank.ndim == 2:
            return pointwise(spatial(x.unflatten(-1, (-1, self.bank.shape[1])), self.bank).flatten(-2), self.coef)
        y = spatial(x.unflatten(1, (-1, self.bank.shape[1])).flatten(0, 1), self.bank[(slice(None),) * 2 + window])
        return pointwise(y.unflatten(0, (len(x), -1)).flatten(1, 2), self.coef)

    def to_recover(self, taps: int) -> int:
        return self.coef.numel() * self.bank.shape[1] * taps

    def in_turn_each(self, taps: int, pixels: int, results: int) -> int:
        return results * (taps * len(self.bank) * self.shape_of[1] + self.coef.numel())


def compose(bank: Tensor, coef: Tensor) -> Tensor:
    """The plain weight: coefficients (t, groups·R2) times bank (R2, R1, kernel)."""
    return (coef.view(-1, len(bank)) @ bank.flatten(1)).view(len(coef), -1, *bank.shape[2:])


def off_identity(bank: Tensor) -> Tensor:
    """Mean square of BBᵀ − I."""
    B = bank.flatten(1)
    return F.mse_loss(B @ B.T, torch.eye(len(B), device=B.device, dtype=B.dtype))


def of(width: Fraction) -> str:
    """Prefix of what a width has for itself; ends in a colon because 1/ would begin 1/16/ as well."""
    return f"{width}:"


def plain(task: Task, width: Fraction, theta: Tree) -> Tree:
    """All but the composed weights: norms and head as they are, biases of composed layers zero."""
    shapes, some = task.model.shapes(width), next(iter(theta.values()))
    biases = {f"{layer}.bias" for layer in task.model.layers} & shapes.keys()
    return take(PLAIN, theta) | {k: some.new_zeros(shapes[k]) for k in biases}


def banks(method: FLANC, task: Task) -> dict[str, tuple[int, ...]]:
    """Shapes (R2, R1, kernel); R1 is what the layer takes at p_min."""
    full, narrow = task.model.shapes(Fraction(1)), task.model.shapes(task.p_min)
    outputs = {layer: full[f"{layer}.weight"][0] for layer in task.model.layers}
    return {k: (max(1, round(t * method.basis)), *narrow[f"{k}.weight"][1:]) for k, t in outputs.items()}
