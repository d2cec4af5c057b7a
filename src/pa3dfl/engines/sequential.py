"""The reference engine: one client after another, on one device."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from pa3dfl.core.tree import Tree, nbytes, wire
from pa3dfl.engines import local
from pa3dfl.engines.base import Engine, Round, Tick, silent
from pa3dfl.methods import Method, Score, Update
from pa3dfl.methods.problem import Client, Task

T = TypeVar("T")

# Clients whose downloads an evaluation makes together: enough for efficient products in the hyper-network, and few
# enough for memory with a large model.
CHUNK = 20


class Sequential(Engine):
    name = "sequential"
    chunk = CHUNK

    def train_client(
        self, method: Method, task: Task, client: Client, start: Tree, fixed: Tree, rnd: int, purpose: str
    ) -> tuple[Tree, float]:
        return local.train(method, task, client, start, fixed, rnd, purpose)

    def train(self, work: Round, tick: Tick = silent) -> list[Update]:
        downs = work.download(work.clients)

        def one(i: int) -> Update:
            client = work.clients[i]
            down, downs[i] = wire(downs[i]), {}
            select = work.select if client.id in work.scored else None
            own = work.private.get(client.id)
            update, model = self.train_one(work.method, work.task, client, down, own, work.number, select)
            update.model = model if work.keeps else None
            return update

        return self.each(one, work.clients, tick)

    def evaluate(self, work: Round, rules: Sequence[str], tick: Tick = silent) -> list[Score]:
        def scores(client: Client, down: Tree) -> list[Score]:
            return [score for score, _ in self._test(work, client, down, rules)]

        everybody = {c.id for c in work.clients}
        return list(chain.from_iterable(self._chunks(work, everybody, scores, tick)))

    def remake(self, work: Round, rule: str, ids: Collection[int]) -> Iterator[tuple[Score, Tree]]:
        def model(client: Client, down: Tree) -> tuple[Score, Tree]:
            return self._test(work, client, down, [rule])[0]

        return self._chunks(work, ids, model, silent)

    def _test(self, work: Round, client: Client, down: Tree, rules: Sequence[str]) -> list[tuple[Score, Tree]]:
        own = work.private.get(client.id)
        return self.test_one(work.method, work.task, client, down, own, work.number, rules, work.select)

    def _chunks(
        self, work: Round, ids: Collection[int], test: Callable[[Client, Tree], T], tick: Tick
    ) -> Iterator[T]:  # fmt: skip
        """Test some of the clients. Downloads are made for whole chunks, because last bits depend on the chunk."""
        for at in range(0, len(work.clients), self.chunk):
            chunk = work.clients[at : at + self.chunk]
            wanted = [(i, c) for i, c in enumerate(chunk) if c.id in ids]
            downs = work.download(chunk) if wanted else []

            def one(k: int, wanted: list[tuple[int, Client]] = wanted, downs: list[Tree] = downs) -> T:
                i, client = wanted[k]
                down, downs[i] = wire(downs[i]), {}
                return test(client, down)

            yield from self.each(one, [c for _, c in wanted], tick)

    def each(self, work: Callable[[int], T], clients: Sequence[Client], tick: Tick) -> list[T]:
        """The results of `work` for the index of each client, in order."""
        results = []
        for i in range(len(clients)):
            results.append(work(i))
            tick()
        return results

    def train_one(
        self, method: Method, task: Task, client: Client, down: Tree, private: Tree | None, rnd: int,
        select: str | None = None,
    ) -> tuple[Update, Tree | None]:  # fmt: skip
        """A client's update, given what it received; `private` is None before its first round.

        With `select`, the trained model is also tested, and the second result is that model.
        """
        start, fixed = method.begin(task, client, down, private_of(method, task, private, client))
        trained, loss = self.train_client(method, task, client, start, fixed, rnd, "train")
        score, model = None, None
        if select is not None:
            candidates = method.personal(task, client.width, start, trained, fixed)
            score = local.score(method, task, client, "kept", candidates, select)
            model = candidates[score.alpha]
        upload, keep = method.finish(task, client.width, trained, fixed)
        return Update(client, wire(upload), client.n, wire(keep), loss, nbytes(down), score=score), model

    def test_one(
        self, method: Method, task: Task, client: Client, down: Tree, private: Tree | None, rnd: int,
        rules: Sequence[str], select: str,
    ) -> list[tuple[Score, Tree]]:  # fmt: skip
        """A client's score by each of the rules, with the chosen model."""
        own = private_of(method, task, private, client)
        start, fixed = method.begin(task, client, down, own)
        tested = []
        for rule in rules:
            if rule == "adapted":
                trained, _ = self.train_client(method, task, client, start, fixed, rnd, "test")
            else:
                trained = method.untrained(task, start, own)
            candidates = method.personal(task, client.width, start, trained, fixed)
            score = local.score(method, task, client, rule, candidates, select)
            tested.append((score, candidates[score.alpha]))
        return tested


def private_of(method: Method, task: Task, private: Tree | None, client: Client) -> Tree:
    """A client's private state on its device; `private` is None before its first round."""
    if private is not None:
        return {k: v.to(task.device) for k, v in private.items()}
    return {k: v.to(task.device, task.dtype) for k, v in method.init_client(task, client).items()}
