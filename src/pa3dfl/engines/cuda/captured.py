"""The GPU engine: local work is captured once (`program.py`) and replayed for many clients concurrently (`streams.py`).

Clients keep their true widths. Many small graphs at a time keep the GPU busy.
"""

import gc
from collections.abc import Collection, Iterator, Sequence

import torch

from pa3dfl.core.tree import Tree, nbytes, wire
from pa3dfl.engines import local
from pa3dfl.engines.base import Round, Tick, silent
from pa3dfl.engines.cuda.program import Program, Results
from pa3dfl.engines.cuda.streams import Job, Streams
from pa3dfl.engines.sequential import CHUNK, Sequential, private_of
from pa3dfl.methods import Method, Score, Update
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
            if work.keeps and client.id in work.scored:
                updates[-1].model = model_of(method, task, client, program, trained)[1]
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

        tested = []
        for client, program in self._tests(work, rules, {c.id for c in work.clients}):
            tested.append((client, program.tested()))
            tick()
        # The host reads results after all work was launched, so that it waits only once.
        return [score for client, results in tested for score in scores_of(task, client, results)]

    def remake(self, work: Round, rule: str, ids: Collection[int]) -> Iterator[tuple[Score, Tree]]:
        method, task = work.method, work.task
        if not local.repeatable(method, task):
            yield from super().remake(work, rule, ids)
            return
        for client, program in self._tests(work, [rule], ids):
            trained = program.trained()[0] if rule == "adapted" else program.start
            alpha, model = model_of(method, task, client, program, trained)
            yield local.score(method, task, client, rule, {alpha: model}, work.select), model

    def _tests(self, work: Round, rules: Sequence[str], ids: Collection[int]) -> Iterator[tuple[Client, Program]]:
        """Test some of the clients; yields each with its program when its test ends."""

        def jobs() -> Iterator[Job]:
            for at in range(0, len(work.clients), CHUNK):
                chunk = work.clients[at : at + CHUNK]
                downs = work.download(chunk) if any(c.id in ids for c in chunk) else []
                for client, down in zip(chunk, downs, strict=False):
                    if client.id in ids:
                        yield client, *self._begin(work, client, down)

        def test(program: Program, client: Client) -> None:
            if "adapted" in rules:
                program.train(client, work.number, "test")
            for rule in rules:
                program.test(client, rule, work.select)

        return self.streams.beside(work.method, work.task, jobs(), test)

    def _begin(self, work: Round, client: Client, down: Tree) -> tuple[Tree, Tree, Tree]:
        own = private_of(work.method, work.task, work.private.get(client.id), client)
        start, fixed = work.method.begin(work.task, client, down, own)
        return start, fixed, work.method.untrained(work.task, start, own)

    def close(self) -> None:
        """Free the GPU's memory; programs and their graphs are reference cycles, which need a collection."""
        self.streams.forget()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def model_of(method: Method, task: Task, client: Client, program: Program, trained: Tree) -> tuple[float, Tree]:
    """The candidate that the program's test chose, with its α; waits for the device."""
    [score] = scores_of(task, client, program.tested())
    candidates = method.personal(task, client.width, program.start, trained, program.fixed)
    return score.alpha, wire(candidates[score.alpha])


def scores_of(task: Task, client: Client, results: Results) -> list[Score]:
    scores = []
    for rule, (alphas, outcome) in results.items():
        best, *tallies = outcome.tolist()
        scores.append(local.score_of(task, client, rule, alphas[int(best)], tallies[:2], tallies[2:]))
    return scores
