"""The federation: rounds of sampling, training, guarding, aggregating and testing, until the end or a stop."""

import contextlib
import time
from collections.abc import Callable, Collection, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.interrupts import deferred_interrupt, sigterm_as_interrupt
from pa3dfl.core.progress import Meter
from pa3dfl.core.rng import numpy_generator
from pa3dfl.core.tree import Tree, nbytes
from pa3dfl.engines import Engine, Round
from pa3dfl.engines.guard import Guard
from pa3dfl.federation.checkpoint import Saved, Store
from pa3dfl.federation.private import Private, rooms
from pa3dfl.federation.robust import robust
from pa3dfl.methods import Method, Score, Update
from pa3dfl.methods.sizes import share
from pa3dfl.methods.task import Client, Task
from pa3dfl.runs.history import History
from pa3dfl.runs.results import RunDirectory, averages


@dataclass(frozen=True)
class Plan:
    """How long to train, how often to test and to save."""

    rounds: int
    per_round: int
    eval_every: int
    patience: float
    select: str
    checkpoint_every: int
    eval_clients: int = 0
    robust: str = "mean"
    tested: str = "adapted"

    @property
    def rules(self) -> list[str]:
        """The rules of testing by which an evaluation tests: all that need no training, and the one that scores."""
        return ["received", *(["adapted"] if self.tested == "adapted" else [])]

    def evaluates(self, rnd: int) -> bool:
        return rnd % self.eval_every == 0 or rnd == self.rounds

    def next_evaluation(self, rnd: int) -> int:
        """The first evaluated round from `rnd` on."""
        return min(self.rounds, -(-rnd // self.eval_every) * self.eval_every)

    def evaluations(self, until: int) -> int:
        return sum(self.evaluates(r) for r in range(1, until + 1))


@dataclass
class Best:
    """The best evaluation so far by one rule of testing."""

    round: int = 0
    val: float = -1.0
    scores: list[Score] = field(default_factory=list)


@dataclass
class State:
    """Everything that a later round depends on."""

    round: int
    server: Tree
    private: MutableMapping[int, Tree]
    tested: str
    """The rule whose scores count."""
    bests: dict[str, Best] = field(default_factory=dict)
    kept: dict[int, Score] = field(default_factory=dict)
    """Of the model that a client's last participation left."""
    seconds: float = 0.0
    rejected: int = 0
    record: dict[str, Any] | None = None
    stopped: bool = False

    @property
    def best(self) -> Best:
        return self.bests.get(self.tested, Best())

    def facts(self) -> dict[str, Any]:
        """What is not a tensor, for JSON."""
        apart = ("round", "server", "private", "tested", "bests", "kept")
        facts = {k: v for k, v in self.__dict__.items() if k not in apart}
        bests = {rule: asdict(best) for rule, best in self.bests.items()}
        return facts | {"bests": bests, "kept": [asdict(s) for s in self.kept.values()]}

    @classmethod
    def of(cls, saved: Saved, tested: str) -> "State":
        facts = dict(saved.facts)
        bests = {
            k: Best(b["round"], b["val"], [Score(**s) for s in b["scores"]]) for k, b in facts.pop("bests").items()
        }
        kept = {s["client"]: Score(**s) for s in facts.pop("kept")}
        return cls(saved.round, saved.server, saved.private, tested, bests, kept, **facts)


class Federation:
    def __init__(
        self, method: Method, task: Task, engine: Engine, plan: Plan, directory: RunDirectory, label: str
    ) -> None:
        self.method, self.task, self.engine, self.plan = method, task, engine, plan
        self.directory, self.label = directory, label
        self.store = Store(directory.checkpoints)
        self.guard = Guard(method, task)
        self.history = History(directory.history, method, task, plan.evaluations(plan.rounds))
        self.evaluated: Callable[[], None] = nothing
        """Called when an evaluated round is on disk."""
        self.joined = False
        """Whether clients have joined, or changed their width, since the server's state was made."""
        self._unsaved: set[int] = set()
        self._saved_round = 0
        self._shapes: dict[Fraction, Tree] = {}
        self._shares: dict[Fraction, float] = {}

    def start(self) -> State:
        server = self.method.init_server(self.task)
        self.directory.rewind(None)
        self.history.rewind(0)
        server = {k: v.to(self.task.device, self.task.dtype) for k, v in server.items()}
        return State(0, server, self._private(), self.plan.tested)

    def restore(self) -> State:
        """The last committed state, or a fresh one if the run never got that far."""
        saved = self.store.load(self.task.device, self._private())
        if saved is None:
            return self.start()
        try:
            state = State.of(saved, self.plan.tested)
        except (KeyError, TypeError):
            raise UserError(
                f"{self.directory.path} was begun by another version of pa3dfl, whose checkpoints have another form: "
                "go on with that version, or start the run anew"
            ) from None
        self.directory.rewind(state.record)
        self.history.rewind(state.round)
        self.joined = True  # perhaps after this state was kept
        if state.best.scores:
            one_each = {c.width: c for c in (self.task.clients[s.client] for s in state.best.scores)}
            self.work(state, list(one_each.values()), state.round).download(list(one_each.values()))
            self.write_clients(state)
        self._saved_round = state.round
        return state

    def _private(self) -> Private:
        return Private(self.directory.private, rooms(self.task.device))

    def run(self, state: State) -> State:
        plan, n = self.plan, len(self.tested())
        meter = Meter(self.label, plan.rounds, plan.per_round, plan.evaluations(plan.rounds), n)
        meter.skip_to(state.round * plan.per_round + plan.evaluations(state.round) * n)
        with contextlib.closing(self.engine), meter, sigterm_as_interrupt():
            try:
                while state.round < plan.rounds and not state.stopped:
                    self.round(state, meter)
            except KeyboardInterrupt:
                # Between two rounds the state is whole; within one it may not be, and that round is lost.
                if state.record is not None and state.record["round"] == state.round:
                    self.save(state)
                raise Interrupted(self._saved_round, self.directory.path) from None
        return state

    def round(self, state: State, meter: Meter) -> None:
        rnd, method, task = state.round + 1, self.method, self.task
        started = time.monotonic()
        cohort = self.sample(rnd)
        sent: dict[int, Tree] | None = None if self.plan.robust == "mean" else {}
        updates = self.engine.train(self.work(state, cohort, rnd, self.last_seen(cohort, rnd), sent), meter.tick)
        if not updates:
            raise UserError(f"round {rnd}: none of {len(cohort)} clients answered; {self._saved_round} rounds are kept")
        # From here on the state changes, in part in place: an interrupt waits until it is consistent again.
        with deferred_interrupt():
            good, bad = self.guard.sift(updates, self._shapes)
            self.engine.tell(bad, state.best.round)
            record: dict[str, Any] = {
                "round": rnd,
                "train_loss": mean_loss(good or updates),
                "lr": task.local.rate(rnd),
                "participants": [u.client.id for u in good],
                "rejected": [asdict(r) for r in bad],
                "missing": absent(cohort, {u.client.id for u in updates}),
                "bytes_down": sum(u.bytes_down for u in updates),
                "bytes_up": sum(nbytes(u.tree) for u in updates),
            }
            if good:
                kept = {u.client.id: u.private for u in good if u.private}
                trained, own = {u.client.id for u in good}, {u.client.id: u.score for u in good if u.score}
                if sent is not None:
                    good = robust(self.plan.robust, [sent[u.client.id] for u in good], good)
                state.server = method.aggregate(task, state.server, good, rnd)
                state.private.update(kept)
                state.kept = {i: s for i, s in state.kept.items() if i not in trained} | own
                self._unsaved |= kept.keys()
            del updates, good, sent
            state.rejected += len(bad)
            state.round = rnd
        if self.plan.evaluates(rnd):
            by_rule = self.evaluate(state, meter)
            self.judge(state, by_rule)
            scores = by_rule[self.plan.tested]
            record |= averages(scores) | {"untested": absent(self.members(), {s.client for s in scores})}
            record["rules"] = {rule: averages(each) for rule, each in by_rule.items()}
            nth = self.plan.evaluations(rnd)
            self.history.write(rnd, nth, by_rule, self.plan.tested, state.server, self._shapes)
        with deferred_interrupt():
            record["seconds"] = time.monotonic() - started
            state.seconds += record["seconds"]
            state.record = record
            if rnd % self.plan.checkpoint_every == 0 or rnd == self.plan.rounds or state.stopped:
                self.save(state)
            self.directory.append_round(record)
        if "test_accuracy" in record:
            self.evaluated()
        accuracy = f"  accuracy {100 * record['test_accuracy']:.1f}%" if "test_accuracy" in record else ""
        meter.say(f"round {rnd}/{self.plan.rounds}  loss {record['train_loss']:.3f}{accuracy}")

    def work(
        self, state: State, clients: Sequence[Client], rnd: int, scored: Collection[int] = (),
        sent: dict[int, Tree] | None = None,
    ) -> Round:  # fmt: skip
        if self.joined:
            state.server, self.joined = self.method.extend(self.task, state.server), False
        return Round(
            self.method, self.task, state.server, state.private, clients, rnd, self.plan.select, scored, self._shapes,
            sent,
        )  # fmt: skip

    def sample(self, rnd: int) -> list[Client]:
        """Uniformly without replacement, in the order of their ids."""
        clients = self.members()
        return [clients[i] for i in places(self.task.seed, rnd, len(clients), self.plan.per_round)]

    def members(self) -> list[Client]:
        """Those who have data; where clients are other machines, a seat may still be free."""
        return [c for c in self.task.clients if c.n]

    def last_seen(self, cohort: list[Client], rnd: int) -> set[int]:
        """Those of a cohort whom the next evaluation finds as this round leaves them."""
        found = {c.id for c in cohort} & {c.id for c in self.tested()}
        if self.engine.may_lose_clients:  # who is sampled later may not answer then
            return found
        members = self.members()
        for later in range(rnd + 1, self.plan.next_evaluation(rnd) + 1):
            found -= {members[i].id for i in places(self.task.seed, later, len(members), self.plan.per_round)}
        return found

    def evaluate(self, state: State, meter: Meter) -> dict[str, list[Score]]:
        """Scores by rule of testing, each in the order of clients."""
        clients = self.tested()
        scores = self.engine.evaluate(self.work(state, clients, state.round), self.plan.rules, meter.tick)
        if not scores:
            raise UserError(
                f"test after round {state.round}: none of {len(clients)} clients answered; "
                f"{self._saved_round} rounds are kept"
            )
        by_rule = {rule: [s for s in scores if s.rule == rule] for rule in self.plan.rules}
        # Who never took part holds nothing but what it would receive.
        by_rule["kept"] = [state.kept.get(s.client, replace(s, rule="kept")) for s in by_rule["received"]]
        return by_rule

    def tested(self) -> list[Client]:
        """All members, or a sample that stays the same, so that evaluations can be compared."""
        clients, n = self.members(), self.plan.eval_clients
        if not 0 < n < len(clients):
            return clients
        chosen = numpy_generator(self.task.seed, "evaluate").choice(len(clients), n, replace=False)
        return [clients[i] for i in sorted(chosen)]

    def judge(self, state: State, by_rule: dict[str, list[Score]]) -> None:
        """Keep the best evaluation so far by each rule, and stop when there was none for too long by the one that
        scores.
        """
        for rule, scores in by_rule.items():
            best = state.bests.setdefault(rule, Best())
            if self.method.best_round_per_client and best.scores:
                before = {s.client: s for s in best.scores}
                now = {s.client: max(before.get(s.client, s), s, key=lambda s: s.val_accuracy) for s in scores}
                scores = [s for _, s in sorted((before | now).items())]
            val = averages(scores)["val_accuracy"]
            if val > best.val:
                state.bests[rule] = Best(state.round, val, scores)
        if state.round - state.best.round > self.plan.patience * self.plan.rounds:
            state.stopped = True
        self.write_clients(state)

    def write_clients(self, state: State) -> None:
        for client in (self.task.clients[s.client] for s in state.best.scores):
            if client.width not in self._shares:
                self._shares[client.width] = share(self.method, self.task, client, self._shapes[client.width])
        by_rule = {rule: best.scores for rule, best in state.bests.items()}
        self.directory.write_clients(self.task, self.plan.tested, by_rule, self._shares)

    def save(self, state: State) -> None:
        if state.round == self._saved_round:
            return
        self.store.save(state.round, state.server, state.private, self._unsaved, state.facts())
        self._saved_round, self._unsaved = state.round, set()


def nothing() -> None:
    """Nobody waits for evaluations."""


@lru_cache(maxsize=1024)
def places(seed: int, rnd: int, n: int, per_round: int) -> tuple[int, ...]:
    """Which of n clients a round samples."""
    chosen = numpy_generator(seed, "sample", rnd).choice(n, min(per_round, n), replace=False)
    return tuple(sorted(chosen.tolist()))


def mean_loss(updates: list[Update]) -> float:
    return sum(u.loss for u in updates) / len(updates)


def absent(expected: list[Client], answered: set[int]) -> list[int]:
    return [c.id for c in expected if c.id not in answered]
