"""The server's side of a deployment: the ordinary federation, inside Flower's ServerApp."""

import fcntl
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import write_atomically
from pa3dfl.core.options.config import Config, read_yaml
from pa3dfl.deploy.parts import NOBODY, seat_widths, server_task
from pa3dfl.deploy.roll import Roll, Seat
from pa3dfl.deploy.site import Site, site_config
from pa3dfl.engines.flower.engine import Flower
from pa3dfl.experiments.api import federation_of, finish
from pa3dfl.methods.assembly import configure, flat, make_method
from pa3dfl.methods.problem import Client, Task
from pa3dfl.runs.format import RunDirectory


def serve(grid: Grid, context: Context) -> None:
    """Train; what came of it is left in `outcome.json`, in one line."""
    given = context.run_config
    site, ticket = Site(Path(str(given["folder"]))), str(given["ticket"])
    try:
        with only_one(site):
            use(site, ticket)
            line = train(grid, site, bool(given["resume"]), int(given["wait-for"]), float(given["patience"]))
    except BaseException as e:
        reason = str(e) if isinstance(e, (UserError, OSError)) else f"{type(e).__name__}: {e}"
        leave(site, ticket, False, " ".join(reason.split()))
        raise
    leave(site, ticket, True, line)


def use(site: Site, ticket: str) -> None:
    """A SuperLink that comes back starts its unfinished runs again, from their beginning: ours start once."""
    if not site.ticket.exists() or site.ticket.read_text() != ticket:
        raise UserError("this training was started before: go on with `pa3dfl deploy train --resume`")
    site.ticket.unlink()


def train(grid: Grid, site: Site, resume: bool, wanted: int, patience: float) -> str:
    config = site_config(site)
    torch.set_num_threads(config.threads)
    directory = RunDirectory(site.run)
    if resume:
        began = configure(read_yaml(directory.config))
        if replace(began, rounds=config.rounds).hash() != config.hash():
            raise UserError(f"{site.config} has changed since the run began: only rounds and timeout may")
    else:
        site.run.mkdir(parents=True)
        directory.write_config(flat(config))

    def say(text: str) -> None:
        with site.log.open("a") as f:
            f.write(text + "\n")

    shared: dict[str, Any] = {"config": flat(config)}
    roll = Roll(grid, site.seats, shared | {"kind": "who"}, not site.settings()["insecure"], say)
    roll.gather(wanted or (config.clients or 1), patience)
    if resume and site.seats.exists():
        roll.load()
    else:
        roll.take_seats(config.clients or wanted, config.data)
    task, method = task_of(config, roll), make_method(config)
    setup = shared | {
        "run": roll.token,
        "common": roll.common.facts() if roll.common else {},
        "widths": [str(c.width) for c in task.clients],
        "shares": [str(c.r) for c in task.clients],
    }

    def admit(i: int, seat: Seat) -> str | None:
        """A late node may not change what the others do."""
        common = roll.common
        if common is None or seat.shape != common.shape or seat.classes > common.classes:
            return f"rows of shape {seat.shape} with {seat.classes} classes do not fit"
        if seat.bytes != (common.mean is not None):
            return f"its rows are {'bytes' if seat.bytes else 'floats'}, those of the others are not"
        shares = [None if s is None else s.share for s in roll.seats]
        shares[i] = seat.share
        widths = seat_widths(method, shares, task.p_min)
        if any(w != c.width for w, c in zip(widths, task.clients, strict=True) if c.id != i and c.n):
            return f"it affords less than the width {task.clients[0].width} at which all others train"
        try:
            task.model.shapes(widths[i])
        except UserError as e:
            return str(e)
        task.clients[i] = Client(i, seat.share, widths[i], seat.sizes[0])
        task.data.declared[i] = seat.sizes  # type: ignore[attr-defined]
        setup["widths"][i], setup["shares"][i] = str(widths[i]), str(seat.share)
        federation.joined = True
        return None

    engine = Flower(roll, setup, config.timeout)
    federation = federation_of(config, method, task, engine, directory)
    roll.admit = admit
    state = federation.run(federation.restore() if resume else federation.start())
    kept = engine.conclude(task, state.best.round, method.best_round_per_client)
    summary = finish(config, federation, state)
    accuracy = f"{100 * summary['test_accuracy']:.1f}% mean test accuracy at round {state.best.round}"
    return f"{accuracy} of {state.round}; {len(kept)} nodes hold their model; {site.run}"


def task_of(config: Config, roll: Roll) -> Task:
    assert roll.common is not None
    shares: list[Fraction | None] = [None if s is None else s.share for s in roll.seats]
    sizes = [NOBODY if s is None else s.sizes for s in roll.seats]
    return server_task(config, roll.common, shares, sizes)


@contextmanager
def only_one(site: Site) -> Iterator[None]:
    """Two servers on one folder would write over each other; the lock goes with the process that holds it."""
    with site.lock.open("w") as f:
        for attempt in range(20):
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if attempt == 19:
                    raise UserError(f"another training is running in {site.folder}: wait for it or stop it") from None
                time.sleep(0.5)
        yield


def leave(site: Site, ticket: str, ok: bool, line: str) -> None:
    print(line, file=sys.stderr, flush=True)
    write_atomically(site.outcome, (json.dumps({"ticket": ticket, "ok": ok, "line": line}) + "\n").encode())
