"""One client's local work, as every engine must do it: the order of rows, the step, the choice of a model."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import islice
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.engines.base import Score, Tick
from pa3dfl.methods.base import Batch, Method
from pa3dfl.rng import generator
from pa3dfl.task import Client, LocalTraining, Task
from pa3dfl.tree import Tree

# Rows that go through a network at once when no gradient is needed.
TEST_BATCH = 512


def order(task: Task, client: Client, rnd: int, purpose: str) -> tuple[Tensor, Tensor | None, list[int]]:
    """Rows of a client's whole pass and how to augment them, already on its device, and the size of every step.

    Each epoch has a fresh order; its last, smaller batch is kept.
    """
    rows = task.data.rows(client.id, "train")
    shuffle = generator(task.seed, f"{purpose}:order", client.id, rnd)
    epochs = range(task.local.epochs)
    chosen = torch.cat([rows[torch.randperm(len(rows), generator=shuffle)] for _ in epochs])
    crops = task.data.draw_crops(len(chosen), generator(task.seed, f"{purpose}:augment", client.id, rnd))
    ends = range(0, len(rows), task.local.batch)
    sizes = [min(task.local.batch, len(rows) - end) for end in ends] * len(epochs)
    return sent(chosen, task.device), None if crops is None else sent(crops, task.device), sizes


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """To a device, without waiting for what runs there."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def schedule(task: Task, client: Client, rnd: int, purpose: str) -> list[tuple[Tensor, Tensor | None]]:
    """The same, step by step."""
    rows, crops, sizes = order(task, client, rnd, purpose)
    if crops is None:
        return [(rows_of_step, None) for rows_of_step in rows.split(sizes)]
    return list(zip(rows.split(sizes), crops.split(sizes), strict=True))


def draw(method: Method, task: Task, client: Client, rnd: int, purpose: str, step: int) -> Tree:
    """The randomness of one step."""
    if type(method).draw is Method.draw:  # a generator takes longer to make than all other preparations
        return {}
    return method.draw(task, client.width, generator(task.seed, f"{purpose}:draw", client.id, rnd, step))


Scaled = tuple[float, Tensor]


class SGD:
    """Clip the norm of each group of gradients, add weight decay, step at a scaled rate each; in place."""

    def __init__(self, local: LocalTraining, groups: list[list[Scaled]]) -> None:
        self.local, self.groups = local, groups
        self.params = [p for group in groups for _, p in group]

    @classmethod
    def of(cls, method: Method, local: LocalTraining, theta: Tree) -> Self:
        return cls(local, [[(method.step_scale(k), theta[k]) for k in names] for names in clipped(method, theta)])

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor], rate: float | Tensor) -> None:
        """`gradients` in the order of `params`."""
        rest = iter(gradients)
        for group in self.groups:
            given = list(islice(rest, len(group)))
            pace = rate
            if self.local.clip_norm:
                pace = rate / (norm(given) / self.local.clip_norm).clamp_(min=1.0)
            for (scale, p), gradient in zip(group, given, strict=True):
                if self.local.weight_decay:
                    subtract(p, p, rate, scale * self.local.weight_decay)
                subtract(p, gradient, pace, scale)


def clipped(method: Method, theta: Tree) -> list[list[str]]:
    """The names of each group; those that a method puts into none are one more.

    Sorted: a tree from a checkpoint may have another order, which changes the last bits of a norm.
    """
    groups = method.clip_groups(theta)
    rest = set(theta).difference(*groups)
    return [sorted(group) for group in (*groups, rest) if group]


def norm(tensors: list[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(t) for t in tensors]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def subtract(p: Tensor, q: Tensor, rate: float | Tensor, scale: float) -> None:
    """p −= rate · scale · q, in one operation."""
    if isinstance(rate, Tensor):
        p.addcmul_(q, rate, value=-scale)
    else:
        p.sub_(q, alpha=rate * scale)


def descend(
    method: Method, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, noise: Tree, sgd: SGD,
    rate: float | Tensor,
) -> Tensor:  # fmt: skip
    """One step of local training, in place; returns the loss before it."""
    with task.arithmetic():
        loss = method.loss(task, width, theta, fixed, batch, noise).to(task.dtype)
    # A user's network may hold parameters that it does not use.
    gradients = torch.autograd.grad(loss, sgd.params, allow_unused=True, materialize_grads=True)
    sgd.step(gradients, rate)
    return loss.detach()


def train(
    method: Method, task: Task, client: Client, start: Tree, fixed: Tree, rnd: int, purpose: str,
    before_step: Tick = lambda: None,
) -> tuple[Tree, float]:  # fmt: skip
    """Local training from `start`, which stays as it is; returns the trained tree and the mean loss."""
    theta = {k: v.clone().requires_grad_() for k, v in start.items()}
    sgd, rate = SGD.of(method, task.local, theta), task.local.rate(rnd)
    losses = []
    for step, (rows, crops) in enumerate(schedule(task, client, rnd, purpose)):
        before_step()
        noise = draw(method, task, client, rnd, purpose, step)
        batch = task.data.batch(rows, crops, task.dtype)
        losses.append(descend(method, task, client.width, theta, fixed, batch, noise, sgd, rate))
    return {k: v.detach() for k, v in theta.items()}, float(torch.stack(losses).mean())


@torch.no_grad()
def score(method: Method, task: Task, client: Client, candidates: dict[float, Tree], select: str) -> Score:
    """The candidate that is best on validation data, tested."""
    val = {alpha: measure(method, task, client, candidate, "val") for alpha, candidate in candidates.items()}
    alpha = choose(val, select)
    test_accuracy, _ = measure(method, task, client, candidates[alpha], "test")
    return Score(client.id, *val[alpha], test_accuracy, alpha)


def choose(val: dict[float, tuple[float, float]], select: str) -> float:
    """The best α by validation (accuracy, loss).

    By accuracy with ties going to the lower loss, or by loss alone; among equals the first, so that less
    local training is preferred.
    """
    return min(val, key=lambda alpha: (-val[alpha][0], val[alpha][1]) if select == "accuracy" else val[alpha][1:])


def measure(method: Method, task: Task, client: Client, candidate: Tree, part: str) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of a candidate on a part of the client's data."""
    rows = task.data.rows(client.id, part)
    correct, loss = tally(method, task, client.width, candidate, rows).tolist()
    return correct / len(rows), loss / len(rows)


def tally(method: Method, task: Task, width: Fraction, candidate: Tree, rows: Tensor) -> Tensor:
    """(correct answers, sum of cross-entropies) of a candidate on rows."""
    total = torch.zeros(2, dtype=torch.float64, device=task.device)
    for chosen in rows.split(TEST_BATCH):
        x, y = task.data.batch(chosen, None, task.dtype)
        with task.arithmetic():
            logits = method.predict(task, width, candidate, x).to(task.dtype)
        total += torch.stack([(logits.argmax(1) == y).sum(), F.cross_entropy(logits, y, reduction="sum")])
    return total
