"""Execution of an order on a node: train or evaluate one client, by the code of the sequential engine."""

from dataclasses import asdict, dataclass
from typing import Protocol

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.engines.flower.messages import Facts, Refused, pack, unpack, whole
from pa3dfl.engines.flower.state_store import StateStore
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Method, Score
from pa3dfl.methods.problem import Client, Task


@dataclass(frozen=True)
class LocalRun:
    """The objects that a node needs to execute an order."""

    method: Method
    task: Task
    worker: Sequential
    states: StateStore


class Node(Protocol):
    """A node: a simulated node acts for the client that an order names, a real one only for its own."""

    def local_run(self, order: Facts) -> LocalRun: ...

    def tested(self, place: LocalRun, client: Client, order: Facts, score: Score, model: Tree) -> None:
        """Called with every evaluated model, which the node may keep."""
        ...

    def conclude(self, order: Facts) -> None:
        """End of training: keep the model of the order's round."""
        ...


def answer(node: Node, order: Facts, blob: bytes) -> tuple[Facts, bytes]:
    """Execute an order and return the reply. Errors that a user can correct are sent in the reply."""
    for name in ("client", "round", "receipt"):  # they become file names
        if order.get(name) is not None or name != "receipt":
            whole(order, name)
    try:
        facts, reply = _work(node, order, unpack(blob))
    except (UserError, Refused) as e:
        facts, reply = {"error": str(e)}, b""
    return {"client": order["client"], "round": order["round"], "kind": order["kind"]} | facts, reply


def _work(node: Node, order: Facts, received: Tree) -> tuple[Facts, bytes]:
    if order["kind"] == "keep":
        node.conclude(order)
        return {}, b""
    place = node.local_run(order)
    method, task, states, rnd, receipt = place.method, place.task, place.states, order["round"], order["receipt"]
    client = task.clients[order["client"]]
    down = {k: v.to(task.device) for k, v in received.items()}
    stored = states.load(receipt)
    private = None if stored is None else {k: v.to(task.device) for k, v in stored.items()}
    if order["kind"] == "train":
        states.settle(receipt)
        update, model = place.worker.train_one(method, task, client, down, private, rnd, order["select"])
        if update.private:
            states.save(rnd, update.private)
        facts: Facts = {"n": update.n, "loss": update.loss, "keeps": bool(update.private)}
        if update.score and model is not None:
            node.tested(place, client, order, update.score, model)
            facts["score"] = asdict(update.score)
        return facts, pack(update.tree)
    scores = []
    for score, model in place.worker.test_one(
        method, task, client, down, private, rnd, order["rules"], order["select"]
    ):
        node.tested(place, client, order, score, model)
        scores.append(asdict(score))
    return {"scores": scores}, b""
