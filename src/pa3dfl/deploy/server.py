"""The server of a deployment: runs the federation inside Flower's ServerApp."""

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import torch
from flwr.app import Context
from flwr.serverapp import Grid

from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.files import write_atomically
from pa3dfl.core.logging import log
from pa3dfl.core.options.config import Config, read_yaml
from pa3dfl.core.words import counted
from pa3dfl.deploy.control_client import ControlClient
from pa3dfl.deploy.folder import DeploymentFolder, deployment_config
from pa3dfl.deploy.join import arrivals, join
from pa3dfl.deploy.registration import Registration
from pa3dfl.deploy.registry import ClientRegistry
from pa3dfl.deploy.tasks import NOBODY, Sizes, server_task, slot_widths
from pa3dfl.engines.flower.engine import Flower
from pa3dfl.experiments.api import federation_of, finish
from pa3dfl.methods.assembly import configure, flat, make_method
from pa3dfl.methods.problem import Client, Task
from pa3dfl.runs.format import RunDirectory
from pa3dfl.runs.page import Renewed
from pa3dfl.runs.track import Tracked
from pa3dfl.runs.track import check as check_trackers

# The file of the outcome has its full size from the start, so that a full disk can be reported.
OUTCOME_BYTES = 4096


def serve(grid: Grid, context: Context) -> None:
    """Train, and write the result or the error as one line to `outcome.json`."""
    given = context.run_config
    deployment, ticket = DeploymentFolder(Path(str(given["folder"]))), str(given["ticket"])
    try:
        with locked(deployment):
            redeem(deployment, ticket)
            wanted, patience = int(given["wait-for"]), float(given["patience"])
            line = train(grid, deployment, bool(given["resume"]), bool(given["join"]), wanted, patience)
    except Interrupted as e:
        line = f"stopped after round {e.round}: `pa3dfl deploy train {deployment.path} --resume` continues"
        write_outcome(deployment, ticket, False, line)
        raise
    except BaseException as e:
        reason = str(e) if isinstance(e, (UserError, OSError)) else f"{type(e).__name__}: {e}"
        if isinstance(e, httpx.HTTPStatusError):
            reason = f"Flower's server failed ({e.response.status_code}): its log says why; --resume continues"
        write_outcome(deployment, ticket, False, " ".join(reason.split()))
        raise
    write_outcome(deployment, ticket, True, line)


def redeem(deployment: DeploymentFolder, ticket: str) -> None:
    """Delete the ticket, so that a training starts once: a restarted SuperLink restarts its unfinished runs."""
    if not deployment.ticket.exists() or deployment.ticket.read_text() != ticket:
        raise UserError("this training was started before: continue with `pa3dfl deploy train --resume`")
    deployment.ticket.unlink()
    write_atomically(deployment.outcome, b" " * OUTCOME_BYTES)


def train(grid: Grid, deployment: DeploymentFolder, resume: bool, joining: bool, wanted: int, patience: float) -> str:
    """Train, or with `joining` let new nodes join a finished training; returns the final message."""
    config = deployment_config(deployment)
    check_trackers(config.track)
    torch.set_num_threads(config.threads)
    directory = RunDirectory(deployment.run)
    if resume or joining:
        began = configure(read_yaml(directory.config))
        if replace(began, rounds=config.rounds).hash() != config.hash():
            raise UserError(f"{deployment.config} has changed since the run began: only rounds and timeout may")
    else:
        deployment.run.mkdir(parents=True)
        directory.write_config(flat(config))

    def say(text: str) -> None:
        with deployment.log.open("a") as f:
            f.write(text + "\n")

    shared: dict[str, Any] = {"config": flat(config)}
    registry = ClientRegistry(
        grid, deployment.registrations, shared | {"kind": "who"}, not deployment.settings()["insecure"], say
    )
    registry.left = partial(left, deployment)
    if not joining:
        registry.gather(wanted or (config.clients or 1), patience)
    if (resume or joining) and deployment.registrations.exists():
        registry.load()
    else:
        registry.enroll(config.clients or wanted, config.data)
    task, method = task_of(config, registry), make_method(config)
    setup = shared | {
        "run": registry.token,
        "common": registry.common.facts() if registry.common else {},
        "widths": [str(c.width) for c in task.clients],
        "shares": [str(c.r) for c in task.clients],
    }

    def admit(i: int, registration: Registration) -> str | None:
        """Accept a late node unless it would change what the others train."""
        common = registry.common
        if common is None or registration.shape != common.shape or registration.classes > common.classes:
            classes = counted(registration.classes, "class", "classes")
            return f"rows of shape {registration.shape} with {classes} do not fit"
        if registration.bytes != (common.mean is not None):
            return f"its rows are {'bytes' if registration.bytes else 'floats'}, those of the others are not"
        shares = [None if s is None else s.share for s in registry.registrations]
        shares[i : i + 1] = [registration.share]
        widths = slot_widths(method, shares, task.p_min)
        others = [c for c in task.clients if c.id != i and registry.registrations[c.id] is not None]
        if any(widths[c.id] != c.width for c in others):
            return f"it affords less than the width {task.clients[0].width} at which all others train"
        try:
            task.model.shapes(widths[i])
        except UserError as e:
            return str(e)
        if i < len(task.clients) and task.clients[i].n:
            federation.replaced.add(i)
        place = slice(i, i + 1)  # of a free number, or behind the last one
        task.clients[place] = [Client(i, registration.share, widths[i], registration.sizes[0], registration.name)]
        task.data.declared[place] = [registration.sizes]  # type: ignore[attr-defined]
        setup["widths"][place], setup["shares"][place] = [str(widths[i])], [str(registration.share)]
        federation.joined = True
        return None

    def recount(i: int, sizes: Sizes) -> None:
        task.clients[i] = replace(task.clients[i], n=sizes[0])
        task.data.declared[i] = sizes  # type: ignore[attr-defined]

    engine = Flower(registry, setup, config.timeout)
    federation = federation_of(config, method, task, engine, directory)
    registry.admit, registry.recount = admit, recount
    if joining:
        task = arrivals(registry, task, directory, config.newcomer_rounds, wanted or 1, patience)
        with Renewed(deployment.run, say):
            return join(federation_of(config, method, task, engine, directory), engine, say)
    with Tracked(deployment.run, config.track, say, say) as tracked, Renewed(deployment.run, say) as page:
        federation.followers = [tracked, page]
        state = federation.run(federation.restore() if resume else federation.start())
        kept = engine.conclude(task, state.best.round, method.best_round_per_client)
        summary = finish(config, federation, state)
    accuracy = f"{100 * summary['test_accuracy']:.1f}% mean test accuracy at round {state.best.round}"
    held = counted(len(kept), "node holds its model", "nodes hold their model")
    return f"{accuracy} of {state.round}; {held}; {deployment.run}"


def left(deployment: DeploymentFolder, node: int) -> bool:
    """Whether the key of a registered node has been unregistered."""
    if deployment.settings()["insecure"]:
        return False
    try:
        with closing(ControlClient(deployment)) as control:
            return node not in control.nodes()[0].values()
    except UserError:  # the server does not answer
        return False


def task_of(config: Config, registry: ClientRegistry) -> Task:
    assert registry.common is not None
    shares: list[Fraction | None] = [None if s is None else s.share for s in registry.registrations]
    sizes = [NOBODY if s is None else s.sizes for s in registry.registrations]
    names = ["" if s is None else s.name for s in registry.registrations]
    task = server_task(config, registry.common, shares, sizes, names)
    newcomers = {i for i, s in enumerate(registry.registrations) if s is not None and s.newcomer}
    for i in newcomers:  # they take no part, unless they join now
        task.clients[i] = replace(task.clients[i], n=0)
    return replace(task, newcomers=frozenset(newcomers))


@contextmanager
def locked(deployment: DeploymentFolder) -> Iterator[None]:
    """Hold the lock of the folder: two servers would overwrite each other's files. The lock ends with the process."""
    with deployment.lock.open("w") as f:
        for attempt in range(20):
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if attempt == 19:
                    raise UserError(
                        f"another training is running in {deployment.path}: wait for it or stop it"
                    ) from None
                time.sleep(0.5)
        yield


def write_outcome(deployment: DeploymentFolder, ticket: str, ok: bool, line: str) -> None:
    (log.info if ok else log.error)(line)
    text = json.dumps({"ticket": ticket, "ok": ok, "line": line[: OUTCOME_BYTES // 8]}).encode()
    with deployment.outcome.open("r+b" if deployment.outcome.exists() else "wb") as f:
        f.write(text.ljust(OUTCOME_BYTES - 1) + b"\n")
