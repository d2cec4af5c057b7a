"""Runs a plan: each cell is a run directory; several processes may share one plan."""

import contextlib
import dataclasses
import re
import shutil
import signal
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.options.config import Config
from pa3dfl.core.words import counted
from pa3dfl.data import NAMES, available
from pa3dfl.experiments import api
from pa3dfl.experiments.reproduce import embeddings, records
from pa3dfl.experiments.reproduce.cells import Cell, slug
from pa3dfl.experiments.reproduce.timing import Paces, estimate
from pa3dfl.methods import assembly
from pa3dfl.runs.format import RunDirectory
from pa3dfl.runs.page import Renewed

DONE, BEGUN, MISSING, NO_DATA = "done", "begun", "missing", "no data"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A cell with its config and its files."""

    cell: Cell
    config: Config
    run: Path
    result: Path

    def state(self) -> str:
        if self.result.is_file():
            return DONE
        if RunDirectory(self.run).config.exists():
            return BEGUN
        return MISSING if self.config.data not in NAMES or self._found() else NO_DATA

    def _found(self) -> bool:
        return any(f.name == self.config.data and f.path for f in available(assembly.folder_of(self.config)))

    def rounds_done(self) -> int:
        path = self.run / "rounds.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0


def job(cell: Cell, config: Config, runs: Path, results: Path) -> Job:
    name = slug(config)
    config = dataclasses.replace(config, out=str(runs / name))
    return Job(cell, config, runs / name, results / "runs" / f"{name}.json")


def left(job: Job, paces: Paces) -> float | None:
    """Seconds that the job still takes; None if its data is missing."""
    state = job.state()
    if state in (DONE, NO_DATA):
        return 0.0 if state == DONE else None
    return estimate(job.config, paces.of(job.config), job.config.clients or 100, job.rounds_done())


@dataclass
class Outcome:
    finished: int = 0
    busy: int = 0
    failed: int = 0
    stopped: bool = False


def work(jobs: Sequence[Job], budget: float | None, say: Say, finished: Callable[[], None]) -> Outcome:
    """Train what is missing, in order, until all is done or the budget (in seconds) is spent."""
    with contextlib.ExitStack() as stack:
        pages = {k: stack.enter_context(page) for k, page in pages_of(jobs, say).items()}
        return work_through(jobs, budget, say, finished, pages)


def work_through(
    jobs: Sequence[Job], budget: float | None, say: Say, finished: Callable[[], None], pages: Mapping[str, Renewed]
) -> Outcome:
    outcome, started = Outcome(), time.monotonic()
    for number, each in enumerate(jobs, 1):
        if each.state() in (DONE, NO_DATA):
            continue
        spent = time.monotonic() - started
        if budget is not None and spent >= budget:
            outcome.stopped = True
            break
        with claimed(each) as mine:
            if not mine:
                outcome.busy += 1
                continue
            if each.state() == DONE:  # by another process, while this one waited for its turn
                continue
            say(f"{number} of {len(jobs)}: {each.cell}, {counted(each.config.rounds or 0, 'round')}")
            try:
                with deadline(None if budget is None else budget - spent):
                    train(each, pages[column(each)])
            except (Interrupted, KeyboardInterrupt):
                if budget is None or time.monotonic() - started < budget:
                    raise
                outcome.stopped = True
                break
            except OSError:  # a full disk: the next cell would fail in the same way
                raise
            except Exception as e:
                outcome.failed += 1
                say(f"{each.cell} failed: {e if isinstance(e, UserError) else f'{type(e).__name__}: {e}'}")
                continue
        outcome.finished += 1
        finished()
    return outcome


def column(job: Job) -> str:
    """Runs that stand side by side on one page: the same data and setting."""
    return re.sub(r"[^\w.-]+", "-", f"{Path(job.config.data).stem}-{job.config.setting}")


def pages_of(jobs: Sequence[Job], say: Say) -> dict[str, Renewed]:
    columns: dict[str, list[Path]] = {}
    for each in jobs:
        columns.setdefault(column(each), []).append(each.run)
    return {name: Renewed(runs[0].parent, say, runs, f"{name}.html") for name, runs in columns.items()}


def train(job: Job, page: Renewed) -> None:
    """Train, or continue, then write the record. Checkpoints of a finished run are removed: they can be gigabytes."""
    directory = RunDirectory(job.run)
    if not directory.config.exists():
        api.run(job.config, followers=[page])
    elif not directory.summary.exists():
        # With the run's own options: threads and device may differ from those given now.
        api.resume(job.run, job.config.data_dir, [page])
    if job.cell.row == "pa3dfl" and (encoded := embeddings.record(job.config, directory.checkpoints)):
        records.write(encoded, job.result.parent.parent / "embeddings", job.result.stem)
    record = records.of_run(job.cell, job.config, job.run)
    records.write(record, job.result.parent, job.result.stem)
    shutil.rmtree(directory.checkpoints, ignore_errors=True)
    shutil.rmtree(directory.private, ignore_errors=True)


@contextlib.contextmanager
def claimed(job: Job) -> Iterator[bool]:
    """Whether this process got the lock of the job.

    The operating system holds the lock, so it is released when its process ends for any reason.
    """
    locks = job.run.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / job.run.name, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Stop the run when the time is over, as SIGTERM does: its last complete round is kept."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()

    def watch() -> None:
        until = time.monotonic() + seconds
        while not over.wait(max(0.05, until - time.monotonic())):
            # Only while a run handles the signal; otherwise it would end the whole program.
            if time.monotonic() >= until and callable(signal.getsignal(signal.SIGTERM)):
                interrupt_main(signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
