"""The sequential engine with each local step replayed as a CUDA graph.

A step is some 160 small kernels, and launching them from Python takes several times as long as running them.
Recorded once per width and batch size, a step is one launch. Everything else is as in `sequential`.
"""

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from pa3dfl.engines import local
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Method
from pa3dfl.task import Client, Task
from pa3dfl.tree import Tree, wire


class Captured(Sequential):
    name = "captured"

    def __init__(self) -> None:
        self._programs: dict[tuple[Method, Task, Fraction], Program] = {}
        self._pool: Any = torch.cuda.graph_pool_handle()

    def train_client(
        self, method: Method, task: Task, client: Client, start: Tree, fixed: Tree, rnd: int, purpose: str
    ) -> tuple[Tree, float]:
        if not method.capturable:
            return local.train(method, task, client, start, fixed, rnd, purpose)
        at = (method, task, client.width)
        if at not in self._programs:
            self._programs[at] = Program(method, task, client.width, start, fixed, self._pool)
        return self._programs[at].run(start, fixed, rnd, local.schedule(task, client, rnd, purpose))


class Program:
    """A width's local step on tensors that stay where they are: a graph reads and writes what it was captured with."""

    def __init__(self, method: Method, task: Task, width: Fraction, start: Tree, fixed: Tree, pool: Any) -> None:
        self.method, self.task, self.width, self.pool = method, task, width, pool
        self.theta = {k: v.requires_grad_() for k, v in wire(start).items()}
        self.fixed = wire(fixed)
        self.sgd = local.SGD(method, task.local, self.theta)
        self.rate = torch.zeros((), dtype=task.dtype, device=task.device)
        self.loss = torch.zeros((), dtype=task.dtype, device=task.device)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor | None]] = {}

    def run(self, start: Tree, fixed: Tree, rnd: int, steps: list[tuple[Tensor, Tensor | None]]) -> tuple[Tree, float]:
        for rows, crops in steps:
            if len(rows) not in self.graphs:
                self.graphs[len(rows)] = self._capture(rows, crops)
        with torch.no_grad():
            for mine, given in ((self.theta, start), (self.fixed, fixed)):
                for k, v in mine.items():
                    v.copy_(given[k])
        self.rate.fill_(self.task.local.rate(rnd))
        self.loss.zero_()
        for rows, crops in steps:
            graph, static_rows, static_crops = self.graphs[len(rows)]
            static_rows.copy_(rows)
            if static_crops is not None and crops is not None:
                static_crops.copy_(crops)
            graph.replay()
        return wire(self.theta), float(self.loss) / len(steps)

    def _capture(self, rows: Tensor, crops: Tensor | None) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor | None]:
        rows, crops = rows.clone(), None if crops is None else crops.clone()
        # Libraries choose their kernels and set up on first use, which a capture does not allow.
        self.rate.zero_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step(rows, crops)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._step(rows, crops)
        return graph, rows, crops

    def _step(self, rows: Tensor, crops: Tensor | None) -> None:
        loss = local.descend(
            self.method, self.task, self.width, self.theta, self.fixed, rows, crops, {}, self.sgd, self.rate
        )
        self.loss.add_(loss)
