"""A small federation on synthetic images, for any method: `make_task(method)`, then `play(method, task)`."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: `make test` runs as many processes as there are cores

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from torch import Tensor

from pa3dfl.core.errors import Interrupted
from pa3dfl.core.randomness import numpy_generator
from pa3dfl.core.tree import Tree, wire
from pa3dfl.data import Arrays
from pa3dfl.engines import Engine, Round, local
from pa3dfl.engines.guard import Guard
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Method, Update, assembly
from pa3dfl.methods.problem import Task

pytest_plugins = ["browser", "workspace"]

# Other tests run beside an example: it may take any time.
hypothesis.settings.register_profile("beside", deadline=None)
hypothesis.settings.load_profile("beside")

# A shell starts what runs in its background deaf to Ctrl-C, which tests send; their processes inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def make_arrays(rows: int = 160, classes: int = 4, shape: tuple[int, ...] = (1, 8, 8)) -> Arrays:
    """Noisy copies of one random picture per class: easy to learn, and never exactly."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (classes, *shape))
    y = np.arange(rows) % classes
    x = np.clip(pictures[y] + rng.normal(0, 60, (rows, *shape)), 0, 255).astype(np.uint8)
    return Arrays(x, y.astype(np.int64), classes)


TINY: dict[str, Any] = {
    "model": "cnn-fashion", "clients": 6, "per_round": 3, "epochs": 1, "batch": 10, "lr": 0.05, "rounds": 4,
    "eval_every": 2, "threads": 1, "setting": "levels:1,1/16,1/256", "device": "cpu", "patience": 9,
}  # fmt: skip
"""Options of a short run on the file `data`."""


@contextmanager
def stopped_in(monkeypatch: pytest.MonkeyPatch, engine: type[Engine], work: str, rnd: int) -> Iterator[None]:
    """Within the block, Ctrl-C comes when an engine begins this work (`train`, `evaluate`) of the round."""
    real = getattr(engine, work)

    def stopping(self: Engine, given: Round, *rest: Any) -> Any:
        if given.number == rnd:
            raise KeyboardInterrupt
        return real(self, given, *rest)

    with monkeypatch.context() as m:
        m.setattr(engine, work, stopping)
        with pytest.raises(Interrupted):
            yield


def write_data(folder: Path, rows: int = 240) -> str:
    arrays = make_arrays(rows)
    np.savez(folder / "tiny.npz", x=arrays.x, y=arrays.y)
    return str(folder / "tiny.npz")


@pytest.fixture
def data(tmp_path: Path) -> str:
    return write_data(tmp_path)


def build(method: Method, arrays: Arrays | None = None, **given: Any) -> Task:
    """Four clients with capacities 1, 1/4, 1/16, 1/256 in this order, in float64, unless said otherwise."""
    said: dict[str, Any] = {
        "method": method.name, "model": "cnn-fashion", "clients": 4, "partition": "iid", "augment": False,
        "setting": "list:1,1/4,1/16,1/256", "epochs": 1, "batch": 10, "lr": 0.05, "precision": "fp64",
        "device": "cpu", "threads": 1,
    }  # fmt: skip
    config = assembly.configure(said | given)
    return assembly.make_task(config, method, arrays or make_arrays())


@dataclass
class Played:
    """Server states (the first before round 1), the updates of each round, private states at the end."""

    servers: list[Tree]
    rounds: list[list[Update]] = field(default_factory=list)
    private: dict[int, Tree] = field(default_factory=dict)


def run(method: Method, task: Task, rounds: int = 3, per_round: int = 2) -> Played:
    """What a federation does, without files. Every update must pass the guard."""
    server: Tree = on_task(task, method.init_server(task))
    played, guard = Played([wire(server)]), Guard(method, task)
    for rnd in range(1, rounds + 1):
        ids = numpy_generator(task.seed, "sample", rnd).choice(len(task.clients), per_round, replace=False)
        cohort = [task.clients[i] for i in sorted(ids)]
        work = Round(method, task, server, played.private, cohort, rnd)
        good, bad = guard.sift(Sequential().train(work), work.shapes)
        assert not bad, bad
        # Aggregation may consume its arguments: keep copies.
        copies = [Update(u.client, wire(u.tree), u.n, wire(u.private), u.loss, u.bytes_down) for u in good]
        played.rounds.append(copies)
        server = method.aggregate(task, server, good, rnd)
        played.private |= {u.client.id: u.private for u in good if u.private}
        played.servers.append(wire(server))
    return played


def on_task(task: Task, tree: dict[str, Tensor]) -> Tree:
    """As the federation does with initial states."""
    return {k: v.to(task.device, task.dtype) for k, v in tree.items()}


def takes_steps_in_float32(method: Method, task: Task, rnd: int) -> Tree:
    """The first and the last client train what they receive; gives the server's state."""
    server = method.init_server(task)
    for client in (task.clients[0], task.clients[3]):
        [down] = method.download(task, server, [client], rnd)
        trained, loss = local.train(method, task, client, down, {}, rnd, "train")
        assert loss > 0
        assert all(v.isfinite().all() and v.dtype == torch.float32 for v in trained.values())
    return server


def learns(method: Method, task: Task, rounds: int, share: float) -> Played:
    """Training loss falls below a share of that of the first round."""
    played = run(method, task, rounds, per_round=4)
    first, *_, last = (sum(u.loss for u in updates) for updates in played.rounds)
    assert last < share * first
    return played


@pytest.fixture
def make_task() -> Callable[..., Task]:
    return build


@pytest.fixture
def play() -> Callable[..., Played]:
    return run


_STATUS = [0]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    _STATUS[0] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """End without the interpreter's teardown: native libraries that many tests have loaded crashed in it once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_STATUS[0])
