"""One client's local work, captured once as CUDA graphs and replayed: the steps of a pass, and tests of its models.

A step is some 100 small kernels, and launching them from Python takes several times as long as running them. As a CUDA
graph, a step is one launch. A program owns every tensor that its graphs read and write: parameters, the rows of a whole
pass, the position in the pass, the step size. The host only launches the next graph (`advance`) until the pass is over.
Programs share no tensors, so that they may run concurrently.
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
from pa3dfl.engines.cuda.graphs import GraphStream, Replay
from pa3dfl.engines.cuda.packed import Packed
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Client, Task

# Equal consecutive steps in one graph, which saves launches.
IN_A_ROW = 8

Results = dict[str, tuple[list[float], Tensor]]
"""For each rule: the candidates' mixing weights; the chosen one's index and its tallies on validation and test rows."""


class Test(NamedTuple):
    """A captured test, the tensors that it writes, and the rows that it reads."""

    replay: Replay
    alphas: list[float]
    outcome: Tensor
    rows: tuple[Tensor, Tensor]


class Program:
    def __init__(self, method: Method, task: Task, width: Fraction, start: Tree, fixed: Tree) -> None:
        self.method, self.task, self.width, self.device = method, task, width, task.device
        self.start, self.fixed = wire(start), wire(fixed)
        # The tree that replaces the trained one in a test without training; for most methods it is the start.
        self.held = self.start if type(method).untrained is Method.untrained else wire(start)
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
        self.graphs = GraphStream(self.device)
        self.todo: deque[Replay] = deque()

    @property
    def taken(self) -> int:
        """Bytes of memory that the program holds."""
        trees = 2 if self.held is self.start else 3
        return self.graphs.taken + trees * nbytes(self.start) + nbytes(self.fixed) + nbytes({"x": self.x})

    def load(self, start: Tree, fixed: Tree, held: Tree) -> None:
        """Copy these trees on the caller's stream, so that the caller may free them afterwards."""
        self.todo.clear()  # left from an interrupted round
        self.results.clear()
        self.graphs.join()
        for mine, given in ((self.held, held), (self.start, start), (self.theta, start), (self.fixed, fixed)):
            self._copy(mine, given)
        self.graphs.follow()

    def train(self, client: Client, rnd: int, purpose: str) -> None:
        """Queue the client's whole pass."""
        rows, crops, sizes = local.order(self.task, client, rnd, purpose)
        draws = [local.draw(self.method, self.task, client, rnd, purpose, i) for i in range(len(sizes))]
        replays = self._replays(sizes, draws)
        x, y = self.task.data.batch(rows, crops, self.task.dtype)
        self.x[: len(x)].copy_(x)
        self.y[: len(y)].copy_(y)
        self.rows.copy_(self.first)
        self.loss.zero_()
        self.rate.fill_(self.task.local.rate(rnd))
        self.graphs.follow()
        self.length = len(sizes)
        self.todo.extend(replays)

    def advance(self) -> None:
        """Launch the next queued graph, if there is one; does not wait for it."""
        if self.todo:
            with self.graphs.running():
                self.todo.popleft()()

    def trained(self) -> tuple[Tree, Tensor]:
        """The trained tree, valid until the next pass, and the pass's mean loss."""
        self.graphs.join()
        return self.theta, self.loss / self.length

    def test(self, client: Client, rule: str, select: str) -> None:
        """Queue a test of the client's model: the received one, or the one that the queued pass trains."""
        parts = [local.sent(self.task.data.rows(client.id, part), self.device) for part in ("val", "test")]
        key = (len(parts[0]), len(parts[1]), rule == "received", select)
        if key not in self.tests:
            trained = self.held if rule == "received" else self.theta
            self.tests[key] = self._capture_test(parts, trained, select)
        test = self.results[rule] = self.tests[key]
        for mine, given in zip(test.rows, parts, strict=True):
            mine.copy_(given)
        self.graphs.follow()
        self.todo.append(test.replay)

    def tested(self) -> Results:
        """The results of the tests since `load`."""
        self.graphs.join()
        return {rule: (test.alphas, test.outcome.clone()) for rule, test in self.results.items()}

    @torch.no_grad()
    def _copy(self, mine: Tree, given: Tree) -> None:
        if mine:
            torch._foreach_copy_(list(mine.values()), [given[k] for k in mine])

    def _replays(self, sizes: list[int], draws: list[Tree]) -> list[Replay]:
        """The graphs to replay for these steps; captures new ones."""
        # Draws may decide shapes, so that each value of them needs a graph of its own.
        keys = [(size, *((k, v.item()) for k, v in drawn.items())) for size, drawn in zip(sizes, draws, strict=True)]
        replays, at = [], 0
        for key, run in groupby(keys):
            length = len(list(run))
            for count, times in zip((IN_A_ROW, 1), divmod(length, IN_A_ROW), strict=True):
                if times:
                    replays += [self._steps(key, sizes[at], draws[at], count)] * times
            at += length
        return replays

    def _steps(self, key: Hashable, size: int, drawn: Tree, count: int) -> Replay:
        """The graph of `count` equal consecutive steps."""
        if (key, count) in self.steps:
            return self.steps[key, count]

        def steps() -> None:
            for _ in range(count):
                rows = self.rows[:size]
                batch = (self.x.index_select(0, rows), self.y.index_select(0, rows))
                theta = self.packed.tree()
                self.loss += local.descend(
                    self.method, self.task, self.width, theta, self.fixed, batch, drawn, self.sgd, self.rate
                )
                self.rows += size

        def trial() -> None:
            self.rows.copy_(self.first)
            steps()

        if count == 1:
            replay = self.graphs.capture(steps, trial)
            self._copy(self.theta, self.start)  # trials have changed the parameters
        else:
            self._steps(key, size, drawn, 1)
            replay = self.graphs.capture(steps)
        self.steps[key, count] = replay
        return replay

    def _capture_test(self, parts: list[Tensor], trained: Tree, select: str) -> Test:
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
            # The GPU picks the parameters, because the host does not know which candidate was chosen.
            chosen = {k: torch.stack([c[k] for c in candidates]).index_select(0, best)[0] for k in candidates[0]}
            test = local.tally(self.method, self.task, self.width, [chosen], rows[1])
            outcome.copy_(torch.cat([best, val.index_select(0, best)[0], test[0]]))

        if self.task.data.travels:  # a graph cannot copy rows from the host
            return Test(test, alphas, outcome, rows)
        return Test(self.graphs.capture(test, test), alphas, outcome, rows)
