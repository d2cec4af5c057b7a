"""Nodes that join after the last round: each gets a model of its own; the other nodes get no orders."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.core.words import counted
from pa3dfl.deploy.registry import ClientRegistry
from pa3dfl.engines.flower.engine import Flower
from pa3dfl.federation.federation import Federation
from pa3dfl.methods.problem import Task
from pa3dfl.runs.format import RunDirectory
from pa3dfl.runs.metrics import mean


def arrivals(
    registry: ClientRegistry, task: Task, directory: RunDirectory, rounds: int, wanted: int, patience: float
) -> Task:
    """Wait for nodes that the run does not know yet; return the task with them as newcomers, the only ones with data.

    A node whose joining was interrupted counts as new.
    """
    before = dict(enumerate(registry.registrations))
    rows = directory.read_newcomers() if directory.newcomers.exists() else []
    done = {row["client"] for row in rows if row["k"] == rounds}
    others = {i for i, r in before.items() if r is not None and (not r.newcomer or i in done)}
    for i in others:
        task.clients[i] = replace(task.clients[i], n=0)
    registry.joining, deadline = True, time.monotonic() + patience
    while True:
        here = registry.nodes().keys() - others
        if len(here) >= wanted:
            for i in here:
                sizes = registry.registrations[i].sizes  # type: ignore[union-attr]
                task.clients[i] = replace(task.clients[i], n=sizes[0])
            return replace(task, newcomers=task.newcomers | here)
        if time.monotonic() > deadline:
            raise UserError(
                f"{len(here)} of {counted(wanted, 'new node')} came within {patience:.0f} s: start them, and give "
                "their keys to `pa3dfl deploy register`"
            )
        time.sleep(1)


def join(federation: Federation, engine: Flower, say: Callable[[str], None]) -> str:
    """Let the newcomers of the federation's task join, and make them keep their models."""
    state, task, plan = federation.restore(), federation.task, federation.plan
    if state.round < plan.rounds and not state.stopped:
        raise UserError(f"the training is at round {state.round} of {plan.rounds}: finish it with --resume, then join")
    with said(say):
        federation.run(state)
    ids = sorted(i for i in task.newcomers if task.clients[i].n)
    alone = replace(task, clients=[task.clients[i] for i in ids])
    kept = engine.conclude(alone, state.round + plan.newcomer_rounds, False)
    rows = [r for r in federation.directory.read_newcomers() if r["client"] in ids and r["k"] == plan.newcomer_rounds]
    accuracy = mean(r["test_accuracy"] for r in rows if r["rule"] == "adapted")
    measured = "no test" if accuracy is None else f"{100 * accuracy:.1f}% mean test accuracy"
    held = counted(len(kept), "node holds its model", "nodes hold their model")
    return f"{len(ids)} joined, {measured}; {held}; {federation.directory.newcomers}"


@contextmanager
def said(say: Callable[[str], None]) -> Iterator[None]:
    """Pass on the messages of the block, such as those of progress."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    handler, level = Handler(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
