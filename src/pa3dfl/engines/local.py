"""One client's local work, which all engines share: the order of rows, the step, the choice of a model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from fractions import Fraction
from itertools import islice
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.randomness import generator, key
from pa3dfl.core.tree import Tree
from pa3dfl.engines.base import Tick
from pa3dfl.methods.base import Batch, Method, Score
from pa3dfl.methods.problem import Client, LocalTraining, Task

# Rows per batch when no gradient is needed.
TEST_BATCH = 512
# Steps whose batches are made together, which saves calls.
AT_ONCE = 8
DROPOUT = "dropout/seed"


def repeatable(method: Method, task: Task) -> bool:
    """Whether a step may be recorded. A step with dropout may not: a replay would drop the same entries again."""
    return method.capturable and not task.model.drops_out


def order(task: Task, client: Client, rnd: int, purpose: str) -> tuple[Tensor, Tensor | None, list[int]]:
    """The rows and crops of a client's whole pass, on its device, and the size of each step.

    Each epoch has a new random order and keeps its last, smaller batch.
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
    """A copy on the device; the host does not wait for the device's work."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def batches(task: Task, client: Client, rnd: int, purpose: str) -> Iterator[Batch]:
    """The batches of a client's whole pass, one per step."""
    rows, crops, sizes = order(task, client, rnd, purpose)
    done = 0
    for at in range(0, len(sizes), AT_ONCE):
        some = sizes[at : at + AT_ONCE]
        chosen = slice(done, done := done + sum(some))
        x, y = task.data.batch(rows[chosen], None if crops is None else crops[chosen], task.dtype)
        yield from zip(x.split(some), y.split(some), strict=True)


def draw(method: Method, task: Task, client: Client, rnd: int, purpose: str, step: int) -> Tree:
    """The random numbers of one step."""
    dropout = {}
    if task.model.drops_out:
        dropout = {DROPOUT: torch.tensor(key(task.seed, f"{purpose}:dropout", client.id, rnd, step))}
    if type(method).draw is Method.draw:  # making a generator is slow
        return dropout
    return method.draw(task, client.width, generator(task.seed, f"{purpose}:draw", client.id, rnd, step)) | dropout


Scaled = tuple[float, list[Tensor]]


class SGD:
    """SGD in place: clips each group's gradient norm, adds weight decay, and scales each entry's step."""

    def __init__(self, local: LocalTraining, groups: list[list[Scaled]]) -> None:
        self.local, self.groups = local, groups
        self.params = [p for group in groups for _, alike in group for p in alike]

    @classmethod
    def of(cls, method: Method, local: LocalTraining, theta: Tree) -> Self:
        groups = []
        for names in clipped(method, theta):
            by_scale: dict[float, list[Tensor]] = {}
            for k in names:
                by_scale.setdefault(method.step_scale(k), []).append(theta[k])
            groups.append(list(by_scale.items()))
        return cls(local, groups)

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor], rate: Tensor) -> None:
        """`gradients` in the order of `params`."""
        rest = iter(gradients)
        for group in self.groups:
            given = [list(islice(rest, len(alike))) for _, alike in group]
            pace = rate
            if self.local.clip_norm:
                pace = rate / (norm([g for alike in given for g in alike]) / self.local.clip_norm).clamp_(min=1.0)
            for (scale, params), alike in zip(group, given, strict=True):
                if self.local.weight_decay:
                    subtract(params, params, rate, scale * self.local.weight_decay)
                subtract(params, alike, pace, scale)


def clipped(method: Method, theta: Tree) -> list[list[str]]:
    """The names in each clip group; names without a group form another one.

    Sorted, because a tree from a checkpoint may have another order, which changes the last bits of a norm.
    """
    groups = method.clip_groups(theta)
    rest = set(theta).difference(*groups)
    return [sorted(group) for group in (*groups, rest) if group]


def norm(tensors: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(tensors)
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def subtract(params: list[Tensor], others: list[Tensor], rate: Tensor, scale: float) -> None:
    """p −= rate · scale · q for each pair, in one call, because Python limits the speed of small steps."""
    torch._foreach_addcmul_(params, others, [rate] * len(params), value=-scale)


def differentiate(
    method: Method, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, draws: Tree,
    params: list[Tensor],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The loss and its gradients."""
    dropout = task.model.drawing(int(draws[DROPOUT])) if DROPOUT in draws else nullcontext()
    with task.arithmetic(), dropout:
        loss = method.loss(task, width, theta, fixed, batch, draws).to(task.dtype)
    # A user's network may have unused parameters.
    gradients = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
    return loss.detach(), *gradients


def descend(
    method: Method, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, draws: Tree, sgd: SGD,
    rate: Tensor,
) -> Tensor:  # fmt: skip
    """One step of local training, in place; returns the loss before it."""
    loss, *gradients = differentiate(method, task, width, theta, fixed, batch, draws, sgd.params)
    sgd.step(gradients, rate)
    return loss


Stepper = Callable[[Batch, Tree], Tensor]


def stepper(method: Method, task: Task, width: Fraction, theta: Tree, fixed: Tree, rate: Tensor) -> Stepper:
    """A function that takes one step on a batch, with the step's draws."""
    sgd = SGD.of(method, task.local, theta)

    def step(batch: Batch, draws: Tree) -> Tensor:
        return descend(method, task, width, theta, fixed, batch, draws, sgd, rate)

    return step


def train(
    method: Method, task: Task, client: Client, start: Tree, fixed: Tree, rnd: int, purpose: str,
    stepper: Callable[..., Stepper] = stepper, before_step: Tick = lambda: None,
) -> tuple[Tree, float]:  # fmt: skip
    """Local training from `start`, which does not change; returns the trained tree and the mean loss."""
    theta = {k: v.clone().requires_grad_() for k, v in start.items()}
    rate = torch.tensor(task.local.rate(rnd), dtype=task.dtype, device=task.device)
    step = stepper(method, task, client.width, theta, fixed, rate)
    losses = []
    for number, batch in enumerate(batches(task, client, rnd, purpose)):
        before_step()
        losses.append(step(batch, draw(method, task, client, rnd, purpose, number)))
    return {k: v.detach() for k, v in theta.items()}, float(torch.stack(losses).mean())


@torch.no_grad()
def score(method: Method, task: Task, client: Client, rule: str, candidates: dict[float, Tree], select: str) -> Score:
    """The test of the candidate that is best on validation data."""
    val_rows, test_rows = (task.data.rows(client.id, part) for part in ("val", "test"))
    val = tally(method, task, client.width, list(candidates.values()), val_rows)
    best = int(choose(val, select))
    alpha = list(candidates)[best]
    [test] = tally(method, task, client.width, [candidates[alpha]], test_rows)
    return score_of(task, client, rule, alpha, val[best].tolist(), test.tolist())


def score_of(task: Task, client: Client, rule: str, alpha: float, val: Sequence[float], test: Sequence[float]) -> Score:
    """The score, from the tallies of the chosen model."""
    n_val, n_test = (len(task.data.rows(client.id, part)) for part in ("val", "test"))
    return Score(client.id, rule, val[0] / n_val, val[1] / n_val, test[0] / n_test, alpha)


def choose(val: Tensor, select: str) -> Tensor:
    """The index of the best candidate by its tally on validation data.

    By accuracy and then lower loss, or by loss alone. Among equal candidates the first wins, which prefers less local
    training. NaN is the worst loss.
    """
    # Infinite losses become the largest number, too.
    correct, loss = val.nan_to_num(nan=torch.finfo(val.dtype).max).unbind(1)
    if select == "accuracy":
        loss = loss.masked_fill(correct < correct.max(), torch.inf)
    return loss.argmin()


def tally(method: Method, task: Task, width: Fraction, candidates: Sequence[Tree], rows: Tensor) -> Tensor:
    """(number of correct answers, sum of cross-entropies) of each candidate on the rows."""
    total = torch.zeros(len(candidates), 2, dtype=torch.float64, device=task.device)
    for chosen in rows.split(TEST_BATCH):
        x, y = task.data.batch(chosen, None, task.dtype)
        for mine, candidate in zip(total, candidates, strict=True):
            with task.arithmetic():
                logits = method.predict(task, width, candidate, x).to(task.dtype)
            mine += torch.stack([(logits.argmax(1) == y).sum(), F.cross_entropy(logits, y, reduction="sum")])
    return total
