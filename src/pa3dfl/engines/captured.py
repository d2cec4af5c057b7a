"""The GPU engine: the clients of a cohort side by side, each a program replayed on a stream of its own.

Clients keep their true widths; the card fills because many small graphs run at once. A program serves every
client of its width, one after another, so that a cohort needs as many of a width as it has clients of it. What
does not fit into memory beside the others waits until one of them is done.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

import torch

from pa3dfl.engines import local
from pa3dfl.engines.base import Round, Score, Tick, silent
from pa3dfl.engines.program import Program
from pa3dfl.engines.sequential import CHUNK, Sequential, private_of
from pa3dfl.errors import UserError
from pa3dfl.methods import Method, Update
from pa3dfl.task import Client, Task
from pa3dfl.tree import Tree, nbytes, wire

# As many hardware queues as PyTorch has streams: with the usual 8, work that could run side by side stands in line.
# CUDA reads it when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

# Memory that programs leave free: for aggregation, the hyper-network, other processes.
RESERVE = 2 << 30

Job = tuple[Client, Tree, Tree]


class Captured(Sequential):
    name = "captured"

    def __init__(self, at_once: int = 64) -> None:
        self.at_once = at_once
        self._of: tuple[Method, Task] | None = None
        self._programs: list[Program] = []
        self._waits = False

    def train(self, work: Round, tick: Tick = silent) -> list[Update]:
        method, task = work.method, work.task
        if not method.capturable:
            return super().train(work, tick)
        received = {}
        # The longest first, so that none of them is left over when all others are done.
        longest = sorted(work.clients, key=lambda c: -c.n * c.width)

        def jobs() -> Iterator[Job]:
            downs = method.download(task, work.server, longest, work.number)
            for i, client in enumerate(longest):
                down, downs[i] = downs[i], {}
                received[client.id] = nbytes(down)
                yield client, *self._begin(work, client, down)

        updates, losses = [], []
        for client, program in self._beside(method, task, jobs(), lambda p, c: p.train(c, work.number, "train")):
            trained, loss = program.trained()
            upload, keep = method.finish(task, client.width, trained, program.fixed)
            updates.append(Update(client, wire(upload), client.n, wire(keep), 0.0, received[client.id]))
            losses.append(loss)
            tick()
        for update, loss in zip(updates, torch.stack(losses).tolist(), strict=True):
            update.loss = loss
        place = {client.id: i for i, client in enumerate(work.clients)}
        return sorted(updates, key=lambda u: place[u.client.id])

    def evaluate(self, work: Round, select: str, tick: Tick = silent) -> list[Score]:
        method, task = work.method, work.task
        if not method.capturable:
            return super().evaluate(work, select, tick)

        def jobs() -> Iterator[Job]:
            for at in range(0, len(work.clients), CHUNK):
                chunk = work.clients[at : at + CHUNK]
                for client, down in zip(chunk, method.download(task, work.server, chunk, work.number), strict=True):
                    yield client, *self._begin(work, client, down)

        def test(program: Program, client: Client) -> None:
            if method.trains_to_test:
                program.train(client, work.number, "test")
            program.test(client)

        tested = []
        for client, program in self._beside(method, task, jobs(), test):
            tested.append((client, *program.tested()))
            tick()
        # The host looks at the numbers once, when all are on their way.
        return [_score(task, client, alphas, tally.tolist(), select) for client, alphas, tally in tested]

    def _begin(self, work: Round, client: Client, down: Tree) -> tuple[Tree, Tree]:
        own = private_of(work.method, work.task, work.private.get(client.id), client)
        return work.method.begin(work.task, client, down, own)

    def close(self) -> None:
        """Give the card's memory back: programs and their recordings hold each other."""
        self._of, self._programs = None, []
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _beside(
        self, method: Method, task: Task, jobs: Iterable[Job], play: Callable[[Program, Client], None]
    ) -> Iterator[tuple[Client, Program]]:
        """Do every job, as many at a time as fit; yields each with its program, to be read at once."""
        if self._of != (method, task):
            self._of, self._programs = (method, task), []
        running: list[tuple[Client, Program]] = []
        for client, start, fixed in jobs:
            while True:
                program = self._idle(client.width, [p for _, p in running])
                if len(running) < self.at_once and (program is not None or self._room(client.width)):
                    break
                if not running:
                    self._programs.clear()  # of widths that others need now
                    torch.cuda.empty_cache()
                    break
                yield _first(running)  # one goes, one comes
            try:
                if program is None:
                    program = Program(method, task, client.width, start, fixed)
                    self._programs.append(program)
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

    def _idle(self, width: Fraction, busy: list[Program]) -> Program | None:
        return next((p for p in self._programs if p.width == width and p not in busy), None)

    def _room(self, width: Fraction) -> bool:
        """Whether there is memory for one more program."""
        if not self._programs or self._programs[0].device.type != "cuda":
            return True
        taken = max(p.taken / p.width for p in self._programs) * width
        if free_memory(self._programs[0].device) > taken + RESERVE:
            return True
        if not self._waits:
            print(f"pa3dfl: the GPU holds {len(self._programs)} clients at a time; the others wait", file=sys.stderr)
            self._waits = True
        return False


def _first(running: list[tuple[Client, Program]]) -> tuple[Client, Program]:
    """Takes the first out, when the card has been given all of its work.

    All get theirs in turns. The card takes only so much from one stream before the host has to wait: clients of a large
    network that are started one after another run one after another.
    """
    while running[0][1].todo:
        for _, program in running:
            program.advance()
    return running.pop(0)


def free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]


def _score(task: Task, client: Client, alphas: list[float], tally: list[list[float]], select: str) -> Score:
    n_val, n_test = (len(task.data.rows(client.id, part)) for part in ("val", "test"))
    by_alpha = dict(zip(alphas, tally, strict=True))
    alpha = local.choose({a: (t[0] / n_val, t[1] / n_val) for a, t in by_alpha.items()}, select)
    correct, loss, test_correct, _ = by_alpha[alpha]
    return Score(client.id, correct / n_val, loss / n_val, test_correct / n_test, alpha)
