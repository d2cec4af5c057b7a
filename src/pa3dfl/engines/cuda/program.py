"""One client's local work recorded once and replayed: the steps of a pass, and the test of its models.

A step is some 100 small kernels, and launching them from Python takes several times as long as running them.
Recorded as a CUDA graph, it is one launch. A program owns every tensor that its graphs read and write: parameters, the
rows of a whole pass, the position in it, the step size. The host then only says "next" (`advance`) until the pass is
over, and programs run beside each other, because no two of them share anything.
"""

from collections import deque
from collections.abc import Hashable
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from pa3dfl.core.tree import Tree, nbytes, wire
from pa3dfl.engines import local
from pa3dfl.engines.cuda.packed import Packed
from pa3dfl.engines.cuda.recorder import Recorder, Replay
from pa3dfl.methods import Method
from pa3dfl.methods.task import Client, Task

# So many equal steps in a row are one graph: fewer launches.
IN_A_ROW = 8

Results = dict[str, tuple[list[float], Tensor]]
"""By rule: the candidates' mixing weights; the place of the chosen one, and its tallies on validation and test rows."""


class Test(NamedTuple):
    """A recorded test: what it writes, and the rows that it reads."""

    replay: Replay
    alphas: list[float]
    outcome: Tensor
    rows: tuple[Tensor, Tensor]


class Program:
    def __init__(self, method: Method, task: Task, width: Fraction, start: Tree, fixed: Tree) -> None:
        self.method, self.task, self.width, self.device = method, task, width, task.device
        self.start, self.fixed = wire(start), wire(fixed)
        self.packed = Packed(method, self.start)
        self.sgd = local.SGD(task.local, self.packed.groups)
        self.theta = {k: v.detach() for k, v in self.packed.tree().items()}
        longest = max(c.n for c in task.clients) * task.local.epochs
        dtype = task.dtype if task.data.measured else task.data.x.dtype
        self.x = torch.zeros(longest, *task.data.input_shape, dtype=dtype, device=self.device)
        self.y = torch.zeros(longest, dtype=task.data.y.dtype, device=self.device)
        self.first = torch.arange(task.local.batch, device=self.device)
        self.rows = self.first.clone()  # of the next step
        self.rate, self.loss = (torch.zeros((), dtype=task.dtype, device=self.device) for _ in range(2))
        self.steps: dict[Hashable, Replay] = {}
        self.tests: dict[Hashable, Test] = {}
        self.results: dict[str, Test] = {}
        self.recorder = Recorder(self.device)
        self.todo: deque[Replay] = deque()

    @property
    def taken(self) -> int:
        """Bytes of memory that it holds."""
        return self.recorder.taken + 2 * nbytes(self.start) + nbytes(self.fixed) + nbytes({"x": self.x})

    def load(self, start: Tree, fixed: Tree) -> None:
        """Begin with copies of these; on the caller's stream, so that they may be forgotten afterwards."""
        self.todo.clear()  # of a round that was stopped
        self.results.clear()
        self.recorder.join()
        for mine, given in ((self.start, start), (self.theta, start), (self.fixed, fixed)):
            self._copy(mine, given)
        self.recorder.follow()

    def train(self, client: Client, rnd: int, purpose: str) -> None:
        """Get ready for the client's whole pass."""
        rows, crops, sizes = local.order(self.task, client, rnd, purpose)
        noises = [local.draw(self.method, self.task, client, rnd, purpose, i) for i in range(len(sizes))]
        replays = self._replays(sizes, noises)
        x, y = self.task.data.batch(rows, crops, self.task.dtype)
        self.x[: len(x)].copy_(x)
        self.y[: len(y)].copy_(y)
        self.rows.copy_(self.first)
        self.loss.zero_()
        self.rate.fill_(self.task.local.rate(rnd))
        self.recorder.follow()
        self.length = len(sizes)
        self.todo.extend(replays)

    def advance(self) -> None:
        """Give the card the next part of what is to be done, if there is more; returns at once."""
        if self.todo:
            with self.recorder.running():
                self.todo.popleft()()

    def trained(self) -> tuple[Tree, Tensor]:
        """The result of the pass, until the next one, and its mean loss."""
        self.recorder.join()
        return self.theta, self.loss / self.length

    def test(self, client: Client, rule: str, select: str) -> None:
        """Get ready for the test of the client's model: as received, or as trained by what was asked before."""
        parts = [local.sent(self.task.data.rows(client.id, part), self.device) for part in ("val", "test")]
        key = (len(parts[0]), len(parts[1]), rule == "received", select)
        if key not in self.tests:
            trained = self.start if rule == "received" else self.theta
            self.tests[key] = self._record_test(parts, trained, select)
        test = self.results[rule] = self.tests[key]
        for mine, given in zip(test.rows, parts, strict=True):
            mine.copy_(given)
        self.recorder.follow()
        self.todo.append(test.replay)

    def tested(self) -> Results:
        """What the tests since `load` found."""
        self.recorder.join()
        return {rule: (test.alphas, test.outcome.clone()) for rule, test in self.results.items()}

    @torch.no_grad()
    def _copy(self, mine: Tree, given: Tree) -> None:
        if mine:
            torch._foreach_copy_(list(mine.values()), [given[k] for k in mine])

    def _replays(self, sizes: list[int], noises: list[Tree]) -> list[Replay]:
        """What to replay for these steps; records what is new."""
        # What a step draws decides shapes, and so makes another graph.
        keys = [(size, *((k, v.item()) for k, v in noise.items())) for size, noise in zip(sizes, noises, strict=True)]
        replays, at = [], 0
        for key, run in groupby(keys):
            length = len(list(run))
            for count, times in zip((IN_A_ROW, 1), divmod(length, IN_A_ROW), strict=True):
                if times:
                    replays += [self._steps(key, sizes[at], noises[at], count)] * times
            at += length
        return replays

    def _steps(self, key: Hashable, size: int, noise: Tree, count: int) -> Replay:
        """So many equal steps in a row."""
        if (key, count) in self.steps:
            return self.steps[key, count]

        def steps() -> None:
            for _ in range(count):
                rows = self.rows[:size]
                batch = (self.x.index_select(0, rows), self.y.index_select(0, rows))
                theta = self.packed.tree()
                self.loss += local.descend(
                    self.method, self.task, self.width, theta, self.fixed, batch, noise, self.sgd, self.rate
                )
                self.rows += size

        def trial() -> None:
            self.rows.copy_(self.first)
            steps()

        if count == 1:
            replay = self.recorder.record(steps, trial)
            self._copy(self.theta, self.start)  # trials were real steps
        else:
            self._steps(key, size, noise, 1)
            replay = self.recorder.record(steps)
        self.steps[key, count] = replay
        return replay

    def _record_test(self, parts: list[Tensor], trained: Tree, select: str) -> Test:
        rows = (parts[0].clone(), parts[1].clone())
        alphas: list[float] = []
        outcome = torch.zeros(5, dtype=torch.float64, device=self.device)

        @torch.no_grad()
        def test() -> None:
            by_alpha = self.method.personal(self.task, self.width, self.start, trained, self.fixed)
            candidates = list(by_alpha.values())
            alphas[:] = by_alpha
            val = local.tally(self.method, self.task, self.width, candidates, rows[0])
            best = local.choose(val, select).view(1)
            # The host does not know which one was chosen: the card picks its parameters.
            chosen = {k: torch.stack([c[k] for c in candidates]).index_select(0, best)[0] for k in candidates[0]}
            test = local.tally(self.method, self.task, self.width, [chosen], rows[1])
            outcome.copy_(torch.cat([best, val.index_select(0, best)[0], test[0]]))

        if self.task.data.travels:  # a graph cannot fetch rows from the host
            return Test(test, alphas, outcome, rows)
        return Test(self.recorder.record(test, test), alphas, outcome, rows)
