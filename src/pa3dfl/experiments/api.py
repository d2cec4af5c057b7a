"""Train a run from its config, or resume it: what Python and the command line call."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pa3dfl import __version__
from pa3dfl.core import machine
from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.core.options.config import Config
from pa3dfl.core.progress import duration
from pa3dfl.data import Arrays
from pa3dfl.engines import Engine, engine_of
from pa3dfl.federation.federation import Federation, Follower
from pa3dfl.federation.state import Plan, State
from pa3dfl.methods import Method
from pa3dfl.methods.assembly import (
    arrays_of,
    configure,
    fingerprint,
    flat,
    known,
    make_method,
    make_task,
    set_arithmetic,
)
from pa3dfl.methods.problem import Task
from pa3dfl.runs import capacity_picture, learning_curve, read_run
from pa3dfl.runs.format import RunDirectory
from pa3dfl.runs.metrics import averages
from pa3dfl.runs.track import Tracked
from pa3dfl.runs.track import check as check_trackers


def run(
    config: Config | None = None, overwrite: bool = False, followers: Sequence[Follower] = (), **given: Any
) -> dict[str, Any]:
    """Train from the start and return the summary, for example `run(method="fedavg", rounds=20)`.

    Options come from `config` and from the keywords, which override it. The messages that the command line prints go
    to the logger `pa3dfl`. `followers` are called with the record of every round, when it is on disk.
    """
    config = configure(({} if config is None else flat(config)) | given)
    directory = RunDirectory(Path(config.out or ""))
    if directory.path.exists() and not directory.path.is_dir():
        raise UserError(f"{directory.path} is a file: choose another --out")
    if directory.path.exists() and any(directory.path.iterdir()):
        if not overwrite:
            raise UserError(
                f"{directory.path} is not empty: resume that run with `pa3dfl resume {directory.path}`, choose another "
                "--out, or pass --overwrite"
            )
        if not directory.config.exists():
            raise UserError(
                f"{directory.path} is not a run directory: it will not be overwritten; choose another --out"
            )
    check_trackers(config.track)
    arrays = arrays_of(config)
    federation = build(config, arrays, directory)
    try:
        if directory.path.exists():
            shutil.rmtree(directory.path)
        directory.path.mkdir(parents=True)
        directory.write_config(flat(config) | {"data_fingerprint": fingerprint(arrays)})
    except OSError as e:
        raise UserError(
            f"run directory {directory.path} cannot be written: {e.strerror or e}; choose another --out"
        ) from None
    return play(config, federation, federation.start, followers)


def resume(
    path: Path, data_dir: str | None = None, followers: Sequence[Follower] = (), track: str | None = None
) -> dict[str, Any]:
    """Continue a stopped run after its last saved round, with the results of a run that was never stopped."""
    directory = RunDirectory(path)
    if not directory.config.exists():
        raise UserError(f"{path} is not a run directory: it has no config.yaml")
    given = directory.read_config()
    expected = given.pop("data_fingerprint", None)
    changed = {"out": str(path), "data_dir": data_dir, "track": track}
    config = configure(given | {k: v for k, v in changed.items() if v})
    check_trackers(config.track)
    arrays = arrays_of(config)
    if expected not in (None, fingerprint(arrays)):
        raise UserError(f"the data of {path} has changed since the run began: restore it, or start a new run")
    federation = build(config, arrays, directory)
    return play(config, federation, federation.restore, followers)


def build(config: Config, arrays: Arrays, directory: RunDirectory) -> Federation:
    """The federation of a run. Checks everything that can be checked before the first round."""
    torch.set_num_threads(config.threads)
    set_arithmetic(config)
    method = make_method(config)
    task = make_task(config, method, arrays)
    return federation_of(config, method, task, make_engine(config, task), directory)


def federation_of(config: Config, method: Method, task: Task, engine: Engine, directory: RunDirectory) -> Federation:
    plan = Plan(
        rounds=known(config.rounds),
        per_round=min(config.per_round, len(task.clients) - len(task.newcomers)),
        eval_every=config.eval_every,
        patience=config.patience,
        select=config.select,
        checkpoint_every=config.checkpoint_every,
        eval_clients=config.eval_clients,
        robust=config.robust,
        tested=config.tested,
        newcomer_rounds=config.newcomer_rounds,
    )
    return Federation(method, task, engine, plan, directory, f"{method.name} on {Path(config.data).name}")


def make_engine(config: Config, task: Task) -> Engine:
    if config.engine != "flower":
        return engine_of(config.engine, task.device, config.threads)
    try:
        from pa3dfl.engines.flower.simulation import simulated  # an extra: most runs do not need it
    except ImportError as e:
        raise UserError(f"engine 'flower' needs Flower ({e}): pip install 'pa3dfl[flower]'") from None
    return simulated(config, task)


def play(
    config: Config, federation: Federation, first: Callable[[], State], followers: Sequence[Follower]
) -> dict[str, Any]:
    """Train from the first state to the end, followed by trackers too."""
    with Tracked(federation.directory.path, config.track) as tracked:
        federation.followers = [*followers, tracked]
        return finish(config, federation, federation.run(first()))


def finish(config: Config, federation: Federation, state: State) -> dict[str, Any]:
    """Write the summary and the learning curve of a finished run; returns the summary."""
    best = averages(state.best.scores)
    names = ("test_accuracy", "val_accuracy", "worst_decile_accuracy")
    by_rule = {
        rule: {k: averages(b.scores)[k] for k in names} | {"best_round": b.round} for rule, b in state.bests.items()
    }
    summary = {
        "method": config.method,
        "data": config.data,
        "setting": config.setting,
        "model": config.model,
        "seed": config.seed,
        "rounds": state.round,
        "best_round": state.best.round,
        "tested": config.tested,
        **{k: best[k] for k in names},
        "rules": by_rule,
        "stopped_early": state.stopped,
        "rejected_updates": state.rejected,
        "seconds": state.seconds,
        "device": machine.device_name(federation.task.device),
        "engine": federation.engine.name,
        "version": __version__,
        "commit": machine.commit(),
        "torch": torch.__version__,
        "config_hash": config.hash(),
        "path": str(federation.directory.path),
    }
    federation.directory.write_summary(summary)
    done = read_run(federation.directory.path)
    learning_curve([done], done.path / "learning_curve.png")
    if config.track:
        capacity_picture([done], done.path / "accuracy_by_capacity.png")
    log.info(
        f"{federation.label}: {100 * best['test_accuracy']:.1f}% mean test accuracy ({config.tested}) "
        f"at round {state.best.round} of {state.round}, {duration(state.seconds)}, in {federation.directory.path}"
    )
    return summary
