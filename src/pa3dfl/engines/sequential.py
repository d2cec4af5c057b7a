"""The reference engine: one client after another, on one device."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pa3dfl.engines import local
from pa3dfl.engines.base import Score, Tick
from pa3dfl.methods import Method, Update
from pa3dfl.task import Client, Task
from pa3dfl.tree import Tree, nbytes, wire

T = TypeVar("T")

# Clients whose downloads are made together in an evaluation: enough for the hyper-network's products
# to be efficient, few enough for a large model to fit.
CHUNK = 20


class Sequential:
    name = "sequential"
    chunk = CHUNK

    def train_client(
        self, method: Method, task: Task, client: Client, start: Tree, fixed: Tree, rnd: int, purpose: str
    ) -> tuple[Tree, float]:
        return local.train(method, task, client, start, fixed, rnd, purpose)

    def train(
        self,
        method: Method,
        task: Task,
        server: Tree,
        private: Mapping[int, Tree],
        cohort: Sequence[Client],
        rnd: int,
        tick: Tick,
    ) -> list[Update]:
        downs = method.download(task, server, cohort, rnd)

        def work(i: int) -> Update:
            client = cohort[i]
            down, downs[i] = wire(downs[i]), {}
            start, fixed = method.begin(task, client, down, private_of(method, task, private, client))
            trained, loss = self.train_client(method, task, client, start, fixed, rnd, "train")
            upload, keep = method.finish(task, client.width, trained, fixed)
            return Update(client, wire(upload), client.n, wire(keep), loss, nbytes(down))

        return self.each(work, cohort, tick)

    def evaluate(
        self,
        method: Method,
        task: Task,
        server: Tree,
        private: Mapping[int, Tree],
        clients: Sequence[Client],
        rnd: int,
        select: str,
        tick: Tick,
    ) -> list[Score]:
        scores: list[Score] = []
        for at in range(0, len(clients), self.chunk):
            chunk = clients[at : at + self.chunk]
            downs = method.download(task, server, chunk, rnd)

            def work(i: int, chunk: Sequence[Client] = chunk, downs: list[Tree] = downs) -> Score:
                client = chunk[i]
                start, fixed = method.begin(task, client, wire(downs[i]), private_of(method, task, private, client))
                trained = start
                if method.trains_to_test:
                    trained, _ = self.train_client(method, task, client, start, fixed, rnd, "test")
                candidates = method.personal(task, client.width, start, trained, fixed)
                return local.score(method, task, client, candidates, select)

            scores += self.each(work, chunk, tick)
        return scores

    def each(self, work: Callable[[int], T], clients: Sequence[Client], tick: Tick) -> list[T]:
        """The result of `work` for every place among the clients, in their order."""
        results = []
        for i in range(len(clients)):
            results.append(work(i))
            tick()
        return results


def private_of(method: Method, task: Task, private: Mapping[int, Tree], client: Client) -> Tree:
    if client.id in private:
        return private[client.id]
    return {k: v.to(task.device, task.dtype) for k, v in method.init_client(task, client).items()}
