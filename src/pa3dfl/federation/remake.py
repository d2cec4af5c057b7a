"""Computes again the models that the best evaluation tested, from the state that it started from.

The engine repeats what it did at the test: it makes the downloads of all clients that were tested together, and
trains, by the rule `adapted`, on the same rows in the same order. A model that was tested by `kept` is read from its
file, because the state that its training started from is gone. Newcomers have no best evaluation: the last one counts.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import safetensors

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.engines import Round, local
from pa3dfl.federation import newcomers
from pa3dfl.federation.checkpoint import BestFiles, Checkpoints
from pa3dfl.federation.federation import Federation
from pa3dfl.federation.state import Best
from pa3dfl.methods import Score
from pa3dfl.methods.problem import Client


@dataclass(frozen=True)
class Remade:
    client: Client
    round: int
    """The round of the evaluation."""
    recorded: Score
    score: Score
    """The score of the model that was computed again."""
    tree: Tree
    """The candidate that was tested, see `Method.personal`."""


def recorded(federation: Federation) -> dict[int, Score]:
    """The score of each client at its best evaluation, or at a newcomer's last one, by the newest checkpoints."""
    return _best(federation) | _joined(federation)[1]


def _best(federation: Federation) -> dict[int, Score]:
    facts = federation.checkpoints.facts() or {}
    best = facts.get("bests", {}).get(federation.plan.tested)
    if best is None:
        raise UserError(f"{federation.directory.path} has no evaluation yet: continue with `pa3dfl resume`")
    return {s.client: s for s in Best.of(best).scores}


def remade(federation: Federation, ids: Collection[int]) -> Iterator[Remade]:
    """The tested models of some clients, each with its new score."""
    scores, best = _best(federation), federation.checkpoints.best
    arrivals, joined = _joined(federation)
    lacking = sorted(set(ids) - best.keys() - joined.keys())
    if lacking:
        raise UserError(
            f"{federation.directory.path} holds no best state of client {lacking[0]}: it was not evaluated, or the run "
            "was begun by an earlier version"
        )
    states: dict[tuple[int, str | None], list[int]] = {}
    for i in [i for i in ids if i not in joined]:
        states.setdefault((best[i].round, best[i].server), []).append(i)
    for some in states.values():
        for score, tree in _of_one_state(federation, scores, some):
            i = score.client
            yield Remade(federation.task.clients[i], best[i].round, scores[i], score, tree)
    late = [i for i in ids if i in joined]
    if arrivals is not None and late:
        for score, tree in federation.engine.remake(arrivals, joined[late[0]].rule, late):
            i = score.client
            yield Remade(federation.task.clients[i], arrivals.number, joined[i], score, tree)


def _joined(federation: Federation) -> tuple[newcomers.Arrivals | None, dict[int, Score]]:
    """The newcomers' work as it was at their last evaluation, and their scores by the rule that counts."""
    task, plan, checkpoints = federation.task, federation.plan, federation.checkpoints
    saved = Checkpoints(checkpoints.folder / newcomers.FOLDER).load(task.device)
    if saved is None or saved.facts["after"] != checkpoints.round():
        return None, {}
    rule = plan.tested if plan.tested in newcomers.RULES else "adapted"
    found = [Score(**s) for k, s in saved.facts["scores"] if k == saved.round]
    own, private = newcomers.of_files(saved)
    work = newcomers.Arrivals(
        federation.method, task, checkpoints.server(task.device), private,
        [task.clients[i] for i in saved.facts["clients"]], saved.facts["after"] + saved.round, plan.select, own=own,
    )  # fmt: skip
    return work, {s.client: s for s in found if s.rule == rule}


def _of_one_state(federation: Federation, scores: dict[int, Score], ids: list[int]) -> Iterator[tuple[Score, Tree]]:
    """The models of clients whose best evaluations started from one server's state."""
    best, task = federation.checkpoints.best, federation.task
    stored = [i for i in ids if best[i].model is not None]
    for i in stored:
        tree, was = _read(federation, i, best[i].model), scores[i]
        yield local.score(federation.method, task, task.clients[i], was.rule, {was.alpha: tree}, "loss"), tree
    rest = set(ids) - set(stored)
    if not rest:
        return
    files: BestFiles = best[ids[0]]
    private = {i: _read(federation, i, best[i].private) for i in rest if best[i].private is not None}
    server = _read(federation, ids[0], files.server)
    work = Round(federation.method, task, server, private, federation.tested(), files.round, federation.plan.select)
    # By `kept`, a client without a stored model never took part: it has the model that it would receive.
    rule = {"kept": "received"}.get(federation.plan.tested, federation.plan.tested)
    for score, tree in federation.engine.remake(work, rule, rest):
        yield replace(score, rule=federation.plan.tested), tree


def _read(federation: Federation, client: int, name: str | None) -> Tree:
    try:
        return federation.checkpoints.read(name, federation.task.device)
    except (OSError, safetensors.SafetensorError) as e:
        raise UserError(f"best state of client {client} cannot be read: {name}: {e}") from None
