"""Simulation on Ray in this process: the engine borrows the Grid of Flower's simulation."""

import json
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from queue import Queue
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import read_tensors, write_tensors
from pa3dfl.core.options.config import Config
from pa3dfl.core.tree import Tree, wire
from pa3dfl.data import NAMES
from pa3dfl.engines import engine_of
from pa3dfl.engines.base import Round, Tick, silent
from pa3dfl.engines.flower.engine import RECEIPT, Flower, content, record
from pa3dfl.engines.flower.messages import Facts, read_facts
from pa3dfl.engines.flower.node import LocalRun, answer
from pa3dfl.engines.flower.state_store import StateStore
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Method, Score, Update
from pa3dfl.methods.assembly import arrays_of, configure, flat, make_method, make_task
from pa3dfl.methods.problem import Client, Task

client_app = ClientApp()
LEFT = "model.safetensors"


@client_app.query()
def on_message(message: Message, context: Context) -> Message:
    facts, blob = answer(SimulatedNode(), *content(message))
    return Message(record(facts, blob), reply_to=message)


def folder_of(order: Facts) -> Path:
    return Path(order["folder"]) / str(order["client"])


class SimulatedNode:
    """A node that acts for the client that an order names."""

    def local_run(self, order: Facts) -> LocalRun:
        # The text of the config is the key of the cache.
        method, task, worker = _built(json.dumps(order["config"]))
        keep = int(order["config"]["checkpoint_every"]) + 2
        return LocalRun(method, task, worker, StateStore(folder_of(order), keep, order["best"]))

    def tested(self, place: LocalRun, client: Client, order: Facts, score: Score, model: Tree) -> None:
        """Write the trained model for the server's process, which keeps it: it cannot be computed again."""
        if score.rule == order["config"]["tested"] == "kept":
            folder_of(order).mkdir(parents=True, exist_ok=True)
            write_tensors(folder_of(order) / LEFT, wire(model))

    def conclude(self, order: Facts) -> None:
        """Nothing to do."""


@lru_cache(maxsize=1)
def _built(text: str) -> tuple[Method, Task, Sequential]:
    config = configure(read_facts(text))
    torch.set_num_threads(config.threads)
    method = make_method(config)
    task = make_task(config, method, arrays_of(config))
    worker = engine_of("sequential", task.device)
    assert isinstance(worker, Sequential)
    return method, task, worker


class Simulation:
    """As many nodes as clients, on as many processes as the machine or the Ray cluster can hold."""

    def __init__(self, clients: int, threads: int, gpu: bool) -> None:
        self.clients = clients
        cpus = min(threads, os.cpu_count() or 1)
        at_once = max(1, (os.cpu_count() or 1) // cpus)
        self.resources = {"num_cpus": cpus, "num_gpus": 1 / at_once if gpu else 0.0}
        self._grid: Grid | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    @property
    def grid(self) -> Grid:
        if self._grid is None:
            self._grid = self._start()
        return self._grid

    def nodes(self) -> dict[int, int]:
        return dict(enumerate(sorted(self.grid.get_node_ids())))

    def heard(self, client: int, facts: Facts) -> None:
        """Nothing to do: the data of a simulation does not change."""

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._grid = self._thread = None

    def _start(self) -> Grid:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        lent: Queue[Grid | BaseException] = Queue()
        self._over.clear()
        server_app = ServerApp()

        @server_app.main()
        def lend(grid: Grid, context: Context) -> None:
            lent.put(grid)
            self._over.wait()

        def simulate() -> None:
            quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
            backend: dict[str, Any] = {"client_resources": self.resources, "init_args": quiet}
            try:
                run_simulation(server_app, client_app, self.clients, backend_config=backend)
            except BaseException as e:
                lent.put(e)
                self._over.set()

        # Flower runs in another thread: the main thread must receive signals, so that a run can be interrupted.
        self._thread = threading.Thread(target=simulate, daemon=True)
        self._thread.start()
        grid = lent.get()
        while isinstance(grid, Grid) and len(list(grid.get_node_ids())) < self.clients:
            time.sleep(0.05)
            grid = grid if lent.empty() else lent.get()
        if isinstance(grid, BaseException):
            raise UserError(f"Flower's simulation did not start: {grid}") from grid
        return grid


class Simulated(Flower):
    """The engine of a simulation. This process can read the nodes' folders."""

    def train(self, work: Round, tick: Tick = silent) -> list[Update]:
        updates = super().train(work, tick)
        for update in updates:
            if work.keeps and update.score:
                update.model = read_tensors(self._folder(update.client.id) / LEFT)
        return updates

    def remake(self, work: Round, rule: str, ids: Collection[int]) -> Iterator[tuple[Score, Tree]]:
        """Repeat the work of the nodes in this process, from the states in their folders."""
        private = {i: self._state(i, receipt) for i, receipt in work.private.items()}
        return Sequential().remake(replace(work, private=private), rule, ids)

    def _state(self, client: int, receipt: Tree) -> Tree:
        rnd = int(receipt[RECEIPT])
        state = StateStore(self._folder(client), 0).load(rnd)
        if state is None:
            raise UserError(f"private state of round {rnd} is not in {self._folder(client)}: restore the run's folder")
        return state

    def _folder(self, client: int) -> Path:
        return Path(self.setup["folder"]) / str(client)


def simulated(config: Config, task: Task) -> Simulated:
    folder = Path(config.out or "").resolve() / "nodes"
    values = flat(config)
    # Ray's processes may have another working directory.
    paths = {
        "data": config.data not in NAMES,
        "data_dir": config.data_dir is not None,
        "setting": config.setting.endswith(".csv"),
        "newcomers": config.newcomers is not None and os.path.isfile(config.newcomers),
    }
    for name in (name for name, is_path in paths.items() if is_path):
        values[name] = str(Path(str(values[name])).expanduser().resolve())
    setup = {"config": values, "folder": str(folder)}
    network = Simulation(len(task.clients), config.threads, task.device.type == "cuda")
    return Simulated(network, setup, config.timeout)
