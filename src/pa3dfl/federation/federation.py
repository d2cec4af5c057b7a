"""The federation: rounds that sample, train, guard, aggregate, evaluate and save, until the last one or a stop."""

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from typing import Any

from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.progress import Meter
from pa3dfl.core.randomness import numpy_generator
from pa3dfl.core.signals import deferred_interrupt, sigterm_as_interrupt
from pa3dfl.core.tree import Tree, nbytes
from pa3dfl.engines import Engine, Round
from pa3dfl.engines.guard import Guard, Rejected
from pa3dfl.federation import evaluation
from pa3dfl.federation.checkpoint import Checkpoints
from pa3dfl.federation.client_states import ClientStates, memory_limits
from pa3dfl.federation.cohort import absent, mean_loss, no_answer, places
from pa3dfl.federation.newcomers import Joining
from pa3dfl.federation.robust import robust
from pa3dfl.federation.state import Plan, State
from pa3dfl.methods import Method, Update
from pa3dfl.methods.problem import Client, Task
from pa3dfl.methods.sizes import share
from pa3dfl.runs.format import RunDirectory
from pa3dfl.runs.history import History

Follower = Callable[[dict[str, Any]], None]


class Federation:
    def __init__(
        self, method: Method, task: Task, engine: Engine, plan: Plan, directory: RunDirectory, label: str
    ) -> None:
        self.method, self.task, self.engine, self.plan = method, task, engine, plan
        self.directory, self.label = directory, label
        self.checkpoints = Checkpoints(directory.checkpoints)
        self.guard = Guard(method, task)
        self.history = History(directory.history, method, task, plan.evaluations(plan.rounds))
        self.followers: Sequence[Follower] = ()
        """Called with the record of every round, when it is on disk."""
        self.joined = False
        """Whether clients have joined, or changed their width, since the server's state was made."""
        self.replaced: set[int] = set()
        """Clients that another machine has taken over since the last round."""
        self._unsaved: set[int] = set()
        self._saved_round = 0
        self._shapes: dict[Fraction, Tree] = {}
        self._shares: dict[Fraction, float] = {}

    def start(self) -> State:
        self.directory.rewind(None)
        self.history.rewind(0)
        server = {k: v.to(self.task.device, self.task.dtype) for k, v in self.method.init_server(self.task).items()}
        return State(0, server, self._client_states(), self.plan.tested)

    def restore(self) -> State:
        """The last committed state, or a fresh one if the run was stopped before the first commit."""
        saved = self.checkpoints.load(self.task.device, self._client_states())
        if saved is None:
            return self.start()
        try:
            state = State.restored(saved, self.plan.tested)
        except (KeyError, TypeError):
            raise UserError(
                f"{self.directory.path} was begun by another version of pa3dfl with another form of checkpoints: "
                "resume it with that version, or start the run anew"
            ) from None
        self.directory.rewind(state.record)
        self.history.rewind(state.round)
        self.joined = True  # clients may have joined after this state was saved
        if state.best.scores:
            one_each = list({c.width: c for c in (self.task.clients[s.client] for s in state.best.scores)}.values())
            self.work(state, one_each, state.round).download(one_each)
            self.write_clients(state)
        self._saved_round = state.round
        return state

    def _client_states(self) -> ClientStates:
        return ClientStates(self.directory.private, memory_limits(self.task.device))

    def run(self, state: State) -> State:
        plan, work = self.plan, partial(self.plan.work, tested=len(self.tested()))
        meter = Meter(self.label, plan.rounds, work, plan.next_evaluation, state.round)
        self.engine.tell([], state.best.when())
        with contextlib.closing(self.engine), sigterm_as_interrupt():
            try:
                with meter:
                    while state.round < plan.rounds and not state.stopped:
                        self.round(state, meter)
                self.join(state)
            except KeyboardInterrupt:
                # Within a round the state may be inconsistent: that round is lost.
                if state.record is not None and state.record["round"] == state.round:
                    self.save(state)
                raise Interrupted(self._saved_round, self.directory.path) from None
        return state

    def join(self, state: State) -> None:
        """Let the newcomers join, if there are any."""
        if late := [c for c in self.task.clients if c.id in self.task.newcomers and c.n]:
            work = self.work(state, late, state.round)
            Joining(work, self.engine, self.guard, self.plan, self.directory, self.label).run()

    def round(self, state: State, meter: Meter) -> None:
        started, rnd = time.monotonic(), state.round + 1
        cohort = self.sample(rnd)
        meter.begin(rnd, "training", [c.id for c in cohort])
        updates, sent = self.train(state, cohort, rnd, meter)
        # The state changes from here on, in part in place: an interrupt waits until it is consistent again.
        with deferred_interrupt():
            accepted, rejected = self.guard.sift(updates, self._shapes)
            self.engine.tell(rejected, state.best.when())
            record = self.record(rnd, cohort, updates, accepted, rejected)
            self.aggregate(state, rnd, accepted, sent)
            state.rejected += len(rejected)
            state.round = rnd
        del updates, accepted, sent  # the evaluation needs the memory
        if self.plan.evaluates(rnd):
            by_rule = self.evaluate(state, meter)
            evaluation.judge(state, by_rule, self.plan, self.method.best_round_per_client)
            self.write_clients(state)
            untested = absent(self.members(), {s.client for s in by_rule[self.plan.tested]})
            record |= evaluation.record(by_rule, self.plan.tested, untested)
            self.history.write(rnd, self.plan.evaluations(rnd), by_rule, self.plan.tested, state.server, self._shapes)
        self.keep(state, record, time.monotonic() - started)
        for follower in self.followers:
            follower(record)
        meter.end(rnd, record["train_loss"], record.get("test_accuracy"))

    def sample(self, rnd: int) -> list[Client]:
        """The cohort: uniformly without replacement, in the order of ids."""
        clients = self.members()
        return [clients[i] for i in places(self.task.seed, rnd, len(clients), self.plan.per_round)]

    def train(
        self, state: State, cohort: list[Client], rnd: int, meter: Meter
    ) -> tuple[list[Update], dict[int, Tree] | None]:
        """The cohort's updates, and what each client was sent if robust aggregation needs it."""
        sent: dict[int, Tree] | None = None if self.plan.robust == "mean" else {}
        updates = self.engine.train(self.work(state, cohort, rnd, self.last_seen(cohort, rnd), sent), meter.tick)
        if not updates:
            raise no_answer(f"round {rnd}", cohort, self._saved_round)
        return updates, sent

    def aggregate(self, state: State, rnd: int, accepted: list[Update], sent: dict[int, Tree] | None) -> None:
        """Change the server's state by the accepted updates, and store the private states of their clients."""
        if not accepted:
            return
        kept = {u.client.id: u.private for u in accepted if u.private}
        trained, scores = {u.client.id for u in accepted}, {u.client.id: u.score for u in accepted if u.score}
        if sent is not None:
            accepted = robust(self.plan.robust, [sent[u.client.id] for u in accepted], accepted)
        state.server = self.method.aggregate(self.task, state.server, accepted, rnd)
        state.private.update(kept)
        state.kept = {i: s for i, s in state.kept.items() if i not in trained} | scores
        self._unsaved |= kept.keys()
        self.checkpoints.put_models(rnd, {u.client.id: u.model for u in accepted})

    def evaluate(self, state: State, meter: Meter) -> evaluation.Scores:
        clients = self.tested()
        meter.begin(state.round, "testing", [c.id for c in clients])
        work = self.work(state, clients, state.round)
        by_rule = evaluation.score(self.engine, work, self.plan.rules, state.kept, meter.tick)
        if not by_rule["received"]:
            raise no_answer(f"test after round {state.round}", clients, self._saved_round)
        return by_rule

    def keep(self, state: State, record: dict[str, Any], seconds: float) -> None:
        """Write the round's record, and a checkpoint when one is due."""
        with deferred_interrupt():
            record["seconds"] = seconds
            state.seconds += seconds
            state.record = record
            if self.plan.saves(state.round) or state.round == state.best.round or state.stopped:
                self.save(state)
            self.directory.append_round(record)

    def save(self, state: State) -> None:
        if state.round == self._saved_round:
            return
        self.checkpoints.save(state.round, state.server, state.private, self._unsaved, state.best.when(), state.facts())
        self._saved_round, self._unsaved = state.round, set()

    def work(
        self, state: State, clients: Sequence[Client], rnd: int, scored: Collection[int] = (),
        sent: dict[int, Tree] | None = None,
    ) -> Round:  # fmt: skip
        """What the engine needs to train or test these clients."""
        if self.joined:
            state.server, self.joined = self.method.extend(self.task, state.server), False
        while self.replaced:
            state.kept.pop(self.replaced.pop(), None)
        return Round(
            self.method, self.task, state.server, state.private, clients, rnd, self.plan.select, scored, self._shapes,
            sent, self.plan.tested == "kept",
        )  # fmt: skip

    def record(
        self, rnd: int, cohort: list[Client], updates: list[Update], accepted: list[Update], rejected: list[Rejected]
    ) -> dict[str, Any]:
        """The entries of rounds.jsonl for a round's training."""
        return {
            "round": rnd,
            "train_loss": mean_loss(accepted or updates),
            "lr": self.task.local.rate(rnd),
            "participants": [u.client.id for u in accepted],
            "rejected": [asdict(r) for r in rejected],
            "missing": absent(cohort, {u.client.id for u in updates}),
            "bytes_down": sum(u.bytes_down for u in updates),
            "bytes_up": sum(nbytes(u.tree) for u in updates),
        }

    def members(self) -> list[Client]:
        """The clients that train. A deployment may have client numbers for nodes that have not joined yet."""
        return [c for c in self.task.clients if c.n and c.id not in self.task.newcomers]

    def tested(self) -> list[Client]:
        """All members, or a sample that stays the same, so that evaluations can be compared."""
        clients, n = self.members(), self.plan.eval_clients
        if not 0 < n < len(clients):
            return clients
        chosen = numpy_generator(self.task.seed, "evaluate").choice(len(clients), n, replace=False)
        return [clients[i] for i in sorted(chosen)]

    def last_seen(self, cohort: list[Client], rnd: int) -> set[int]:
        """The ids of a cohort's clients that do not train again before the next evaluation."""
        found = {c.id for c in cohort} & {c.id for c in self.tested()}
        if self.engine.may_lose_clients:  # a client that is sampled again may not answer then
            return found
        members = self.members()
        for later in range(rnd + 1, self.plan.next_evaluation(rnd) + 1):
            found -= {members[i].id for i in places(self.task.seed, later, len(members), self.plan.per_round)}
        return found

    def write_clients(self, state: State) -> None:
        """Write clients.csv from the best evaluations so far."""
        for client in (self.task.clients[s.client] for s in state.best.scores):
            if client.width not in self._shapes:  # of a client that another machine has taken over
                self.work(state, [client], state.round).download([client])
            if client.width not in self._shares:
                self._shares[client.width] = share(self.method, self.task, client, self._shapes[client.width])
        by_rule = {rule: best.scores for rule, best in state.bests.items()}
        expected = {c.id for c in self.tested()}
        self.directory.write_clients(self.task, self.plan.tested, by_rule, self._shares, expected)
