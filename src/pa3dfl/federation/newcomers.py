"""Newcomers join after the last round, each as if it were the only one: the federation does not change for it.

A newcomer trains a few rounds. After each, the method may change what the server stores about this client
(`Method.welcome`); the rest of the server's state is frozen. After some of these rounds the newcomer is tested.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from pa3dfl.core.progress import Meter
from pa3dfl.core.signals import deferred_interrupt
from pa3dfl.core.tree import Tree, put, take
from pa3dfl.engines import Engine, Round
from pa3dfl.engines.guard import Guard
from pa3dfl.federation.checkpoint import Checkpoints, Saved
from pa3dfl.federation.client_states import ClientStates, memory_limits
from pa3dfl.federation.cohort import mean_loss
from pa3dfl.federation.state import Plan
from pa3dfl.methods import Score
from pa3dfl.methods.problem import Client
from pa3dfl.runs.format import RunDirectory
from pa3dfl.runs.metrics import averages

TESTED_AFTER = (0, 1, 2, 5, 10)
RULES = ("received", "adapted")
FOLDER = "newcomers"
"""Of their checkpoints, in the folder of the run's, and of their private states."""


@dataclass(frozen=True)
class Arrivals(Round):
    """Local work of newcomers; `own` holds what the server stores about each."""

    own: Mapping[int, Tree] = field(default_factory=dict)

    def download(self, clients: Sequence[Client]) -> list[Tree]:
        alone = [replace(self, server=self.server | self.own[c.id], own={}, clients=[c]) for c in clients]
        return [down for work in alone for down in Round.download(work, work.clients)]


@dataclass
class Joining:
    """The progress of the newcomers: how many rounds they have trained, and their scores, each with its round."""

    work: Round
    engine: Engine
    guard: Guard
    plan: Plan
    directory: RunDirectory
    label: str
    done: int = -1
    own: dict[int, Tree] = field(default_factory=dict)
    scores: list[tuple[int, Score]] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = memory_limits(self.work.task.device)
        self.private = ClientStates(self.directory.private / FOLDER, limits)
        self.checkpoints = Checkpoints(self.directory.checkpoints / FOLDER)

    def run(self) -> None:
        """Train until the last round, from the last checkpoint if there is one."""
        self.restore()
        n, last, tests = len(self.work.clients), self.plan.newcomer_rounds, self.tests()
        meter = Meter(
            f"{self.label}, newcomers", last, lambda k: n * (k + sum(0 < t <= k for t in tests)),
            lambda k: min((t for t in tests if t >= k), default=last), max(self.done, 0),
        )  # fmt: skip
        with meter:
            for k in range(self.done + 1, last + 1):
                self.step(k, meter)

    def tests(self) -> list[int]:
        last = self.plan.newcomer_rounds
        return sorted({k for k in TESTED_AFTER if k < last} | {last})

    def step(self, k: int, meter: Meter) -> None:
        """The k-th round of the newcomers; k = 0 is their arrival."""
        ids = [c.id for c in self.work.clients]
        meter.begin(k, "training", ids)
        loss = self.train(k, meter) if k else self.arrive()
        found: list[Score] = []
        if k in self.tests():
            meter.begin(k, "testing", ids)
            found = self.engine.evaluate(self.arrivals(k), RULES, meter.tick if k else lambda: None)
        with deferred_interrupt():
            self.scores += [(k, s) for s in found]
            self.done = k
            self.save()
        tested = [s for s in found if s.rule == "adapted"]
        if k:
            accuracy = averages(tested)["test_accuracy"] if tested else None
            meter.end(k, loss, accuracy)

    def arrive(self) -> float:
        w = self.work
        self.own = {c.id: w.method.welcome(w.task, w.server, c, None) for c in w.clients}
        return math.nan

    def train(self, k: int, meter: Meter) -> float:
        w = self.work
        updates = self.engine.train(self.arrivals(k), meter.tick)
        with deferred_interrupt():
            accepted, rejected = self.guard.sift(updates, w.shapes)
            self.engine.tell(rejected, {c.id: w.number + k for c in w.clients})
            for u in accepted:
                if u.private:
                    self.private[u.client.id] = u.private
                own = self.own[u.client.id]
                self.own[u.client.id] = own | w.method.welcome(w.task, w.server | own, u.client, u)
        return mean_loss(accepted)

    def arrivals(self, k: int) -> Arrivals:
        """The work of the k-th round after the last one of training."""
        w = self.work
        return Arrivals(
            w.method, w.task, w.server, self.private, w.clients, w.number + k, w.select, shapes=w.shapes, own=self.own
        )

    def save(self) -> None:
        ids = [c.id for c in self.work.clients]
        kept = {i: put("own/", own) | put("private/", self.private.get(i, {})) for i, own in self.own.items()}
        facts = {"after": self.work.number, "clients": ids, "scores": [[k, asdict(s)] for k, s in self.scores]}
        self.checkpoints.save(self.done, {}, kept, set(kept), {}, facts)
        self.directory.write_newcomers(self.work.task, self.work.method.name, self.scores)

    def restore(self) -> None:
        saved = self.checkpoints.load(self.work.task.device)
        if saved is None or saved.facts["after"] != self.work.number:
            return
        ids, self.scores = [c.id for c in self.work.clients], [(k, Score(**s)) for k, s in saved.facts["scores"]]
        if saved.facts["clients"] != ids:  # others joined before
            self.scores = [(k, s) for k, s in self.scores if s.client not in ids]
            return
        self.done = saved.round
        self.own, private = of_files(saved)
        self.private.update(private)


def of_files(saved: Saved) -> tuple[dict[int, Tree], dict[int, Tree]]:
    """By newcomer: what the server keeps of each, and the private states of those that have one."""
    ids = saved.facts["clients"]
    own = {i: take("own/", saved.private.get(i, {})) for i in ids}
    return own, {i: private for i in ids if (private := take("private/", saved.private.get(i, {})))}
