"""Fjord: ordered dropout. The leading channels learn to work without the others.

Horváth et al., "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered
Dropout", NeurIPS 2021. The server keeps the full model; a client of width p trains the leading channels.
Every batch also draws a narrower width, uniformly among the multiples of p_min below p, and teaches that
submodel the predictions of the wide one: CE(wide, y) + CE(narrow, softmax(wide)), the teacher being constant.
A client of the smallest width has nothing narrower and trains with plain cross-entropy.

Each entry is averaged over the clients that hold it, weighted by data sizes; an entry that no client holds keeps its
value. Without distillation and with full width for all clients this is FedAvg. The tested model is the client's slice
of the global model as it is. Widths are fractions, because channel counts from float products can be off by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.tree import Tree
from pa3dfl.methods.base import Batch, Method, Update, option
from pa3dfl.methods.common.slicing import cut, leading_places, merge
from pa3dfl.methods.problem import Client, Problem, Task

STEPS = "narrow/steps"


@dataclass(frozen=True)
class Fjord(Method):
    name = "fjord"
    summary = "leading channels, each batch also distilled into a narrower width"

    distil: bool = option(True, "distil into a narrower width; false: plain cross-entropy at the own width")

    def init_server(self, task: Task) -> Tree:
        return task.initial()

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        return [cut(server, leading_places(problem.model, c.width)) for c in clients]

    def draw(self, problem: Problem, width: Fraction, generator: torch.Generator) -> Tree:
        """The narrower width in units of p_min; stays on the CPU, because it decides shapes."""
        narrower = narrower_widths(width, problem.p_min)
        if not self.distil or not narrower:
            return {}
        return {STEPS: torch.randint(1, narrower + 1, (), generator=generator)}

    def loss(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, draws: Tree) -> Tensor:
        x, y = batch
        wide = problem.model(theta, x, width)
        loss = F.cross_entropy(wide, y)
        if STEPS not in draws:
            return loss
        narrow = int(draws[STEPS]) * problem.p_min
        logits = problem.model(cut(theta, leading_places(problem.model, narrow)), x, narrow)
        return loss + F.cross_entropy(logits, wide.detach().softmax(1))

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        places = [leading_places(task.model, u.client.width) for u in updates]
        return merge(server, [u.tree for u in updates], places, [u.n for u in updates])


def narrower_widths(width: Fraction, p_min: Fraction) -> int:
    """The number of multiples of p_min below a width."""
    return -(-width // p_min) - 1
