"""The GPU engine: local work is captured once (`program.py`) and replayed for many clients concurrently (`streams.py`).

Clients keep their true widths. Many small graphs at a time keep the GPU busy.
"""

import gc
from collections.abc import Iterator, Sequence

import torch

from pa3dfl.core.tree import Tree, nbytes, wire
from pa3dfl.engines import local
from pa3dfl.engines.base import Round, Tick, silent
from pa3dfl.engines.cuda.program import Program, Results
from pa3dfl.engines.cuda.streams import Job, Streams
from pa3dfl.engines.sequential import CHUNK, Sequential, private_of
from pa3dfl.methods import Score, Update
from pa3dfl.methods.problem import Client, Task


class Captured(Sequential):
    name = "captured"

    def __init__(self, at_once: int = 64) -> None:
        self.streams = Streams(at_once)

    def train(self, work: Round, tick: Tick = silent) -> list[Update]:
        method, task = work.method, work.task
        if not local.repeatable(method, task):
            return super().train(work, tick)
        received = {}
        # The longest first, so that no long one starts when the others are almost done.
        longest = sorted(work.clients, key=lambda c: -c.n * c.width)

        def jobs() -> Iterator[Job]:
            downs = work.download(longest)
            for i, client in enumerate(longest):
                down, downs[i] = downs[i], {}
                received[client.id] = nbytes(down)
                yield client, *self._begin(work, client, down)

        def train(program: Program, client: Client) -> None:
            program.train(client, work.number, "train")
            if client.id in work.scored:
                program.test(client, "kept", work.select)

        updates, losses, tested = [], [], {}
        for client, program in self.streams.beside(method, task, jobs(), train):
            trained, loss = program.trained()
            upload, keep = method.finish(task, client.width, trained, program.fixed)
            updates.append(Update(client, wire(upload), client.n, wire(keep), 0.0, received[client.id]))
            losses.append(loss)
            tested[client.id] = program.tested()
            tick()
        for update, loss in zip(updates, torch.stack(losses).tolist(), strict=True):
            update.loss = loss
            update.score = next(iter(scores_of(task, update.client, tested[update.client.id])), None)
        place = {client.id: i for i, client in enumerate(work.clients)}
        return sorted(updates, key=lambda u: place[u.client.id])

    def evaluate(self, work: Round, rules: Sequence[str], tick: Tick = silent) -> list[Score]:
        method, task = work.method, work.task
        if not local.repeatable(method, task):
            return super().evaluate(work, rules, tick)

        def jobs() -> Iterator[Job]:
            for at in range(0, len(work.clients), CHUNK):
                chunk = work.clients[at : at + CHUNK]
                for client, down in zip(chunk, work.download(chunk), strict=True):
                    yield client, *self._begin(work, client, down)

        def test(program: Program, client: Client) -> None:
            if "adapted" in rules:
                program.train(client, work.number, "test")
            for rule in rules:
                program.test(client, rule, work.select)

        tested = []
        for client, program in self.streams.beside(method, task, jobs(), test):
            tested.append((client, program.tested()))
            tick()
        # The host reads results after all work was launched, so that it waits only once.
        return [score for client, results in tested for score in scores_of(task, client, results)]

    def _begin(self, work: Round, client: Client, down: Tree) -> tuple[Tree, Tree]:
        own = private_of(work.method, work.task, work.private.get(client.id), client)
        return work.method.begin(work.task, client, down, own)

    def close(self) -> None:
        """Free the GPU's memory; programs and their graphs are reference cycles, which need a collection."""
        self.streams.forget()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def scores_of(task: Task, client: Client, results: Results) -> list[Score]:
    scores = []
    for rule, (alphas, outcome) in results.items():
        best, *tallies = outcome.tolist()
        scores.append(local.score_of(task, client, rule, alphas[int(best)], tallies[:2], tallies[2:]))
    return scores
