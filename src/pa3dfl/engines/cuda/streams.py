"""Clients side by side on a GPU, each a program on a stream of its own.

A program serves every client of its width, one after another, so that a cohort needs as many of a width as it has
clients of it. They may run at the same time because no two of them share anything (`recorder.py`), and what one client
trains depends on no other: in which order the card gets to them changes no result.

They are given work in turns. The card takes only so much from one stream before the host has to wait: clients of a
large network that were given all of theirs at once would run one after another.
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

# As many hardware queues as PyTorch has streams: with the usual 8, work that could run side by side stands in line.
# CUDA reads it when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

Job = tuple[Client, Tree, Tree]
"""A client, what it starts from, and what stays fixed."""
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
        """Do every job, as many at a time as fit; yields each with its program, to be read at once."""
        if self._of != (method, task):
            self._of, self.programs = (method, task), []
        running: Running = []
        for client, start, fixed in jobs:
            while True:
                program = self._idle(client.width, [p for _, p in running])
                if len(running) < self.at_once and (
                    program is not None or self._memory.has_room(client.width, self.programs)
                ):
                    break
                if not running:
                    self.programs.clear()  # of widths that others need now
                    torch.cuda.empty_cache()
                    break
                yield _first(running)  # one goes, one comes
            try:
                if program is None:
                    program = Program(method, task, client.width, start, fixed)
                    self.programs.append(program)
                program.load(start, fixed)
                play(program, client)
            except torch.OutOfMemoryError:
                raise UserError(
                    f"the GPU has too little memory for a client of width {client.width}: use a smaller --batch, or "
                    "--engine sequential"
                ) from None
            running.append((client, program))
            for _, begun in running:
                if begun.recorder.idle():
                    begun.advance()
        while running:
            yield _first(running)

    def forget(self) -> None:
        self._of, self.programs = None, []

    def _idle(self, width: Fraction, busy: list[Program]) -> Program | None:
        return next((p for p in self.programs if p.width == width and p not in busy), None)


def _first(running: Running) -> tuple[Client, Program]:
    """Takes the first out, when the card has been given all of its work."""
    while running[0][1].todo:
        for _, program in running:
            program.advance()
    return running.pop(0)
