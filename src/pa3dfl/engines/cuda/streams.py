"""Runs clients concurrently on a GPU, each as a program on a stream of its own.

A program serves clients of its width, one after another; concurrent clients of a width need a program each. Programs
may run concurrently because they share nothing (`graphs.py`). Clients do not depend on each other, so that the order in
which the GPU runs them changes no result.

The host launches one graph per client in turn. A stream's launch queue is limited, and the host blocks when it is full:
with all of one client's graphs launched at once, clients of a large network would run one after another.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

import torch

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.engines.cuda.memory import Memory
from pa3dfl.engines.cuda.program import Program
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Client, Task

# As many hardware queues as PyTorch has streams: with the default of 8, concurrent work waits in shared queues.
# CUDA reads this variable when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

Job = tuple[Client, Tree, Tree, Tree]
"""A client, its trainable and its fixed tree, and the tree that replaces the trained one in a test without training."""
Running = list[tuple[Client, Program]]


class Streams:
    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.programs: list[Program] = []
        self._of: tuple[Method, Task] | None = None
        self._memory = Memory()

    def beside(
        self, method: Method, task: Task, jobs: Iterable[Job], play: Callable[[Program, Client], None]
    ) -> Iterator[tuple[Client, Program]]:
        """Do all jobs, as many at a time as fit. Read the results of each yielded program before the next one."""
        if self._of != (method, task):
            self._of, self.programs = (method, task), []
        running: Running = []
        for client, start, fixed, held in jobs:
            while True:
                program = self._idle(client.width, [p for _, p in running])
                if len(running) < self.at_once and (
                    program is not None or self._memory.fits(client.width, self.programs)
                ):
                    break
                if not running:
                    self.programs.clear()  # free programs of other widths
                    torch.cuda.empty_cache()
                    break
                yield _first(running)
            try:
                if program is None:
                    program = Program(method, task, client.width, start, fixed)
                    self.programs.append(program)
                program.load(start, fixed, held)
                play(program, client)
            except torch.OutOfMemoryError:
                raise UserError(
                    f"the GPU has too little memory for a client of width {client.width}: use a smaller --batch, or "
                    "--engine sequential"
                ) from None
            running.append((client, program))
            for _, begun in running:
                if begun.graphs.idle():
                    begun.advance()
        while running:
            yield _first(running)

    def forget(self) -> None:
        self._of, self.programs = None, []

    def _idle(self, width: Fraction, busy: list[Program]) -> Program | None:
        return next((p for p in self.programs if p.width == width and p not in busy), None)


def _first(running: Running) -> tuple[Client, Program]:
    """Remove and return the first client, after all of its graphs were launched."""
    while running[0][1].todo:
        for _, program in running:
            program.advance()
    return running.pop(0)
