"""What `pa3dfl reproduce` does, step by step."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from pa3dfl import methods as registry
from pa3dfl.core.errors import UserError
from pa3dfl.core.options.capacity import capacities
from pa3dfl.core.options.schema import coerce
from pa3dfl.core.progress import duration
from pa3dfl.core.words import counted
from pa3dfl.data import NAMES
from pa3dfl.experiments.reproduce import cells, convergence, efficiency, hn_cost, paper, partitions
from pa3dfl.experiments.reproduce import page as pages
from pa3dfl.experiments.reproduce.timing import Paces
from pa3dfl.experiments.reproduce.work import DONE, NO_DATA, Job, Outcome, Say, job, left, work
from pa3dfl.methods import assembly

COLUMNS = ("data", "setting", "method", "seed", "rounds", "state", "estimate")
RENDER_SECONDS = 300.0
"""Seconds after which the page is written again during runs."""


@dataclass(frozen=True)
class Places:
    results: Path
    runs: Path
    docs: Path


def parts_of(words: Sequence[str]) -> list[str]:
    for word in words:
        if word not in (*paper.PARTS, "all"):
            raise UserError(f"unknown part {word!r}: expected one of {', '.join(paper.PARTS)} or all")
    return list(paper.PARTS) if "all" in words else list(dict.fromkeys(words))


def jobs_of(
    parts: Sequence[str], data: Sequence[str], settings: Sequence[str], methods: str | None,
    seeds: Sequence[int] | None, part: Fraction | int, given: Mapping[str, Any], places: Places,
) -> list[Job]:  # fmt: skip
    """The plan; every config is checked."""
    for name in data:
        if name not in NAMES:  # a user's file: read now, so that errors appear before the first run
            assembly.arrays_of(assembly.configure({**given, "data": name}))
    for setting in settings:
        capacities(setting, coerce("clients", given.get("clients", 100), int), 0)
    full = part >= max(map(paper.full, data)) if isinstance(part, int) else part == 1
    chosen = cells.plan(
        parts, data, settings, None if methods is None else _names(methods), seeds or ([0, 1, 2] if full else [0])
    )
    jobs = [job(c, cells.config_of(c, given, part), places.runs, places.results) for c in chosen]
    first: dict[Path, Job] = {}
    for each in jobs:  # a run with an option at its default exists already
        first.setdefault(each.run, each)
    return list(first.values())


def _names(text: str) -> list[str]:
    groups = {"all": list(registry.registry()), "ablations": list(registry.registry(registry.ABLATIONS))}
    return list(dict.fromkeys(n for word in text.split(",") for n in groups.get(word.strip(), [word.strip()])))


def shown(jobs: Sequence[Job], places: Places) -> list[dict[str, Any]]:
    """The plan as records, with estimates from measured rounds."""
    paces = Paces(places.results)
    records = []
    for j in jobs:
        seconds = left(j, paces)
        records.append(
            {
                "data": j.cell.data, "setting": j.cell.setting, "method": j.cell.row, "seed": j.cell.seed,
                "rounds": j.config.rounds, "state": j.state(), "seconds": seconds,
                "estimate": "–" if seconds is None or j.state() == DONE else duration(seconds),
            }
        )  # fmt: skip
    return records


def carry_out(
    parts: Sequence[str], jobs: Sequence[Job], given: Mapping[str, Any], places: Places, budget: float | None, say: Say
) -> Path:
    """Run what is missing, then render the page; returns it."""
    for data in dict.fromkeys(j.config.data for j in jobs if j.state() == NO_DATA):
        say(f"{data} was not found and is left out: see `pa3dfl data`, or pass --data-dir")
    paces = Paces(places.results)
    outcome = Outcome()
    device, threads = str(given.get("device", "auto")), coerce("threads", given.get("threads", 0), int)
    if "efficiency" in parts:
        say("efficiency: counting multiply-adds, bytes and memory")
        efficiency.run(places.results, device)
    if "hn-cost" in parts:
        hn_cost.run(places.results, device, threads, say)
    if "figures" in parts:
        say("figures: partitions, and full-batch steps for the convergence theorem")
        convergence.run(places.results)
        for config in {j.config.data: j.config for j in reversed(jobs) if j.state() != NO_DATA}.values():
            partitions.run(config, places.results)
    if jobs:
        states = [j.state() for j in jobs]
        say(f"{counted(len(jobs), 'run')} planned, {states.count(DONE)} done")

        rendered = time.monotonic()

        def finished() -> None:
            nonlocal rendered
            if time.monotonic() - rendered > RENDER_SECONDS:
                render(places)
                rendered = time.monotonic()
            todo = [s for j in jobs if (s := left(j, paces))]
            if todo:
                say(f"{counted(len(todo), 'run')} left, about {duration(sum(todo))}")

        outcome = work(jobs, budget, say, finished)
    page = render(places)
    if outcome.busy:
        say(f"{counted(outcome.busy, 'run is', 'runs are')} being trained by other processes")
    if outcome.stopped:
        say("the budget is spent: the same command continues")
    if jobs and all(j.state() == NO_DATA for j in jobs):
        raise UserError("nothing was run: none of the data was found")
    if outcome.failed:
        raise UserError(
            f"{outcome.failed} of {counted(len(jobs), 'run')} failed, see above; the same command tries them again"
        )
    return page


def render(places: Places) -> Path:
    return pages.write(places.results, places.docs)
