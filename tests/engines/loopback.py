"""Flower's messages without Flower's processes: a grid that hands orders to nodes in this process."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message

from pa3dfl.core.tree import Tree
from pa3dfl.engines.flower.engine import Flower, content, record
from pa3dfl.engines.flower.messages import Facts
from pa3dfl.engines.flower.node import LocalRun, answer
from pa3dfl.engines.flower.state_store import StateStore
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Task
from postbox import Postbox

Reply = tuple[Facts, bytes]
Tamper = Callable[[Facts, bytes], list[Reply]]


class Nodes(Postbox):
    """All nodes of a task. They answer honestly, once; `tamper` says what arrives instead, by client."""

    def __init__(self, method: Method, task: Task, folder: Path) -> None:
        super().__init__()
        self.method, self.task, self.folder = method, task, folder
        self.tamper: dict[int, Tamper] = {}
        self.gone: set[int] = set()
        self.orders: list[Facts] = []
        self._answers: dict[Any, Reply] = {}

    @property
    def grid(self) -> Any:
        return self

    def nodes(self) -> dict[int, int]:
        return {c.id: 100 + c.id for c in self.task.clients}

    def heard(self, client: int, facts: Facts) -> None:
        pass

    def close(self) -> None:
        pass

    def local_run(self, order: Facts) -> LocalRun:
        return LocalRun(self.method, self.task, Sequential(), self.states(order["client"]))

    def states(self, client: int) -> StateStore:
        return StateStore(self.folder / str(client), keep=3)

    def tested(self, *_: Any) -> None:
        pass

    def conclude(self, *_: Any) -> None:
        pass

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        replies = []
        for message in self.sent(ids):
            order, blob = content(message)
            client = order["client"]
            if client in self.gone:
                continue
            self.orders.append(order)
            at = (order["kind"], client, order["round"])
            if at not in self._answers:
                self._answers[at] = answer(self, order, blob)
            arrived = self.tamper.get(client, lambda facts, blob: [(facts, blob)])(*self._answers[at])
            replies += [Message(record(*reply), reply_to=message) for reply in arrived]
        return replies

    def engine(self, timeout: float = 60.0) -> Flower:
        return Flower(self, {}, timeout)


def fresh(method: Method, task: Task) -> Tree:
    return {k: v.to(task.dtype) for k, v in method.init_server(task).items()}


def same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
