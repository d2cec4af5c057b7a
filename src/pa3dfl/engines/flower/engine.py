"""The engine whose clients are Flower's nodes. Flower only carries messages: pa3dfl samples and aggregates."""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pa3dfl.core.tree import Tree, nbytes
from pa3dfl.engines.base import Engine, Round, Tick, silent
from pa3dfl.engines.flower.messages import (
    Facts,
    Refused,
    number,
    pack,
    read_facts,
    size_limit,
    unpack,
    whole,
)
from pa3dfl.engines.guard import Guard, Rejected, Spec
from pa3dfl.engines.sequential import CHUNK
from pa3dfl.methods import Score, Update
from pa3dfl.methods.problem import Client, Task

POLL_SECONDS = 0.1
ASK_AGAIN_SECONDS = 1.0
RECORD, RECEIPT = "pa3dfl", "round"
# Errors of a node that has left: its client counts as missing. Other errors count as a bad answer.
GONE = (ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)

Order = tuple[Client, Facts, Tree]
Answer = tuple[Client, Message]


class Network(Protocol):
    """The connection to nodes, and which node is which client."""

    @property
    def grid(self) -> Grid: ...

    def nodes(self) -> dict[int, int]:
        """The node id of each reachable client."""
        ...

    def heard(self, client: int, facts: Facts) -> None:
        """Called with the facts of every answer, which may report a change of the client's data or capacity."""
        ...

    def close(self) -> None: ...


class Flower(Engine):
    name = "flower"
    may_lose_clients = True

    def __init__(self, network: Network, setup: Facts, timeout: float) -> None:
        self.network, self.setup, self.timeout = network, setup, timeout
        self._guards: dict[Task, Guard] = {}
        self._verdicts: dict[int, str] = {}
        self._best: Mapping[int, int] = {}

    def train(self, work: Round, tick: Tick = silent) -> list[Update]:
        method, task, rnd = work.method, work.task, work.number
        downs = work.download(work.clients)
        sizes = {c.id: nbytes(down) for c, down in zip(work.clients, downs, strict=True)}
        orders = [
            (
                c,
                self._order("train", c, work.private, rnd) | {"select": work.select if c.id in work.scored else None},
                d,
            )
            for c, d in zip(work.clients, downs, strict=True)
        ]
        guard = self._guards.setdefault(task, Guard(method, task))
        updates = []
        for client, reply in self._ask(lambda: orders, tick):
            try:
                facts, blob = self._read(client, rnd, "train", reply)
                client = task.clients[client.id]
                update = update_of(client, rnd, facts, blob, guard.spec(client, work.shapes), task.device)
            except Refused as e:
                update = Update(client, {}, 0, {}, math.nan, 0, str(e))
            update.bytes_down = sizes[client.id]
            updates.append(update)
        return updates

    def evaluate(self, work: Round, rules: Sequence[str], tick: Tick = silent) -> list[Score]:
        rnd, what = work.number, {"rules": list(rules), "select": work.select}

        def orders() -> Iterable[Order]:
            for at in range(0, len(work.clients), CHUNK):
                chunk = work.clients[at : at + CHUNK]
                for c, down in zip(chunk, work.download(chunk), strict=True):
                    yield c, self._order("test", c, work.private, rnd) | what, down

        scores: dict[int, list[Score]] = {}
        for client, reply in self._ask(orders, tick):
            try:
                facts, _ = self._read(client, rnd, "test", reply)
                scores.setdefault(client.id, scores_of(client, rules, facts))
            except Refused as e:
                self._verdicts[client.id] = f"round {rnd}: test: {e}"
        return [score for i in sorted(scores) for score in scores[i]]

    def tell(self, rejected: Sequence[Rejected], best: Mapping[int, int]) -> None:
        self._verdicts |= {r.client: r.reason for r in rejected}
        self._best = best

    def conclude(self, task: Task, best_round: int, per_client: bool) -> list[int]:
        """Make all nodes keep the model of the best evaluation (or of their own best); return the clients that did."""
        members = [c for c in task.clients if c.n]
        orders: list[Order] = [(c, self._order("keep", c, {}, best_round) | {"own": per_client}, {}) for c in members]
        return [client.id for client, reply in self._ask(lambda: orders, silent) if not failed(reply)]

    def close(self) -> None:
        self.network.close()

    def _order(self, kind: str, client: Client, private: Mapping[int, Tree], rnd: int) -> Facts:
        mine = private.get(client.id)
        return self.setup | {
            "kind": kind,
            "client": client.id,
            "round": rnd,
            "receipt": None if mine is None else int(mine[RECEIPT]),
            "rejected": self._verdicts.pop(client.id, None),
            # A client that missed the best evaluation is told its round too.
            "best": self._best.get(client.id, max(self._best.values(), default=0)),
        }

    def _read(self, client: Client, rnd: int, kind: str, reply: Message) -> tuple[Facts, bytes]:
        facts, blob = reply_of(client, rnd, kind, reply)
        self.network.heard(client.id, facts)
        return facts, blob

    def _ask(self, orders: Callable[[], Iterable[Order]], tick: Tick) -> list[Answer]:
        """Send orders and return the replies before the deadline, sorted by client.

        If no node answers, for example because the network was cut or the clock has jumped, all orders are sent again.
        """
        deadline = time.monotonic() + self.timeout
        while not (answers := self._ask_once(orders(), deadline, tick)) and time.monotonic() < deadline:
            time.sleep(min(ASK_AGAIN_SECONDS, self.timeout))
        return sorted(answers, key=lambda a: a[0].id)

    def _ask_once(self, orders: Iterable[Order], deadline: float, tick: Tick) -> list[Answer]:
        """Send the orders once. Skips absent nodes, and a node that has just taken over a client of another width."""
        grid, nodes = self.network.grid, self.network.nodes()
        widths = self.setup.get("widths", {})
        asked: dict[str, Client] = {}
        for client, facts, tree in orders:
            if client.id in nodes and (not widths or widths[client.id] == str(client.width)):
                message = Message(record(facts, pack(tree)), nodes[client.id], "query", ttl=self.timeout)
                asked |= {i: client for i in grid.push_messages([message]) if i}
        pending, answers = set(asked), []
        while pending and time.monotonic() < deadline:
            for reply in grid.pull_messages(list(pending)):
                about = reply.metadata.reply_to_message_id
                if about in asked and not (reply.has_error() and reply.error.code in GONE):
                    answers.append((asked[about], reply))
                    tick()
                pending.discard(about)
            time.sleep(POLL_SECONDS if pending else 0)
        return answers


def record(facts: Facts, blob: bytes) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({"facts": json.dumps(facts), "tree": blob})})


def content(message: Message) -> tuple[Facts, bytes]:
    if message.has_error():
        raise Refused(f"the node's program failed: {' '.join(str(message.error.reason).split())[:200]}")
    held: Mapping[str, object] = message.content.config_records.get(RECORD, {})
    blob = held.get("tree")
    if not isinstance(blob, bytes):
        raise Refused("not a message of pa3dfl")
    return read_facts(held.get("facts")), blob


def failed(message: Message) -> bool:
    try:
        facts, _ = content(message)
    except Refused:
        return True
    return "error" in facts


def reply_of(client: Client, rnd: int, kind: str, message: Message) -> tuple[Facts, bytes]:
    """Check that a reply answers this order and comes from this client."""
    facts, blob = content(message)
    if whole(facts, "client") != client.id:
        raise Refused(f"answers for client {facts['client']}, not for itself")
    if whole(facts, "round") != rnd or facts.get("kind") != kind:
        raise Refused(f"answers {str(facts.get('kind'))[:20]!r} of round {facts['round']}, expected {kind!r} of {rnd}")
    if "error" in facts:
        raise Refused(str(facts["error"])[:500])
    return facts, blob


def update_of(client: Client, rnd: int, facts: Facts, blob: bytes, spec: Spec, device: torch.device) -> Update:
    n, loss = whole(facts, "n"), number(facts, "loss")
    tree = {k: v.to(device) for k, v in unpack(blob, size_limit(spec)).items()}
    receipt = {RECEIPT: torch.tensor(rnd)} if facts.get("keeps") is True else {}
    score = None if facts.get("score") is None else score_of(client, "kept", facts["score"])
    return Update(client, tree, n, receipt, loss, 0, score=score)


def scores_of(client: Client, rules: Sequence[str], facts: Facts) -> list[Score]:
    held = facts.get("scores")
    if not isinstance(held, list) or len(held) != len(rules):
        raise Refused(f"no scores by the rules {', '.join(rules)}")
    return [score_of(client, rule, values) for rule, values in zip(rules, held, strict=True)]


def score_of(client: Client, rule: str, held: object) -> Score:
    if not isinstance(held, dict):
        raise Refused("a score that is not a JSON object")
    names = ("val_accuracy", "val_loss", "test_accuracy", "alpha")
    values = {name: number(held, name) for name in names}
    if not all(0 <= values[name] <= 1 for name in ("val_accuracy", "test_accuracy", "alpha")):
        raise Refused("an accuracy outside 0..1")
    return Score(client.id, rule, **values)
