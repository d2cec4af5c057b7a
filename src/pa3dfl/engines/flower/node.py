"""What a node does with an order: train or test one client, by the same code as the sequential engine."""

from dataclasses import asdict, dataclass
from typing import Protocol

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.engines.flower.shelf import Shelf
from pa3dfl.engines.flower.wire import Facts, Refused, pack, unpack, whole
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Method, Score
from pa3dfl.methods.problem import Client, Task


@dataclass(frozen=True)
class Workplace:
    """What an order refers to, as this node has built it."""

    method: Method
    task: Task
    worker: Sequential
    shelf: Shelf


class Host(Protocol):
    """A node: in simulation it plays whichever client an order names, in deployment only itself."""

    def workplace(self, order: Facts) -> Workplace: ...

    def tested(self, place: Workplace, client: Client, order: Facts, score: Score, model: Tree) -> None:
        """The model that was just tested, to be kept or not."""
        ...

    def conclude(self, order: Facts) -> None:
        """Training is over: the model of the order's round is the client's."""
        ...


def answer(host: Host, order: Facts, blob: bytes) -> tuple[Facts, bytes]:
    """The reply to an order. What a person can mend is said in the reply instead of raised."""
    for name in ("client", "round", "receipt"):  # they become names of files
        if order.get(name) is not None or name != "receipt":
            whole(order, name)
    try:
        facts, reply = _work(host, order, unpack(blob))
    except (UserError, Refused) as e:
        facts, reply = {"error": str(e)}, b""
    return {"client": order["client"], "round": order["round"], "kind": order["kind"]} | facts, reply


def _work(host: Host, order: Facts, received: Tree) -> tuple[Facts, bytes]:
    if order["kind"] == "keep":
        host.conclude(order)
        return {}, b""
    place = host.workplace(order)
    method, task, shelf, rnd, receipt = place.method, place.task, place.shelf, order["round"], order["receipt"]
    client = task.clients[order["client"]]
    down = {k: v.to(task.device) for k, v in received.items()}
    stored = shelf.load(receipt)
    private = None if stored is None else {k: v.to(task.device) for k, v in stored.items()}
    if order["kind"] == "train":
        shelf.settle(receipt)
        update, model = place.worker.train_one(method, task, client, down, private, rnd, order["select"])
        if update.private:
            shelf.save(rnd, update.private)
        facts: Facts = {"n": update.n, "loss": update.loss, "keeps": bool(update.private)}
        if update.score and model is not None:
            host.tested(place, client, order, update.score, model)
            facts["score"] = asdict(update.score)
        return facts, pack(update.tree)
    scores = []
    for score, model in place.worker.test_one(
        method, task, client, down, private, rnd, order["rules"], order["select"]
    ):
        host.tested(place, client, order, score, model)
        scores.append(asdict(score))
    return {"scores": scores}, b""
