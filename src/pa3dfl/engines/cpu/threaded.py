"""The CPU engine: several clients at once, one thread each.

A small network's operations are too short to be split among cores, but clients are independent of each other. PyTorch
releases Python's lock while it computes, so that threads suffice, and nothing is copied between processes. A thread
does a client's work as the sequential engine does, on one core. Results therefore depend neither on the number of
threads nor on their timing.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import TypeVar

import torch

from pa3dfl.core.tree import Tree
from pa3dfl.engines import local
from pa3dfl.engines.base import Tick
from pa3dfl.engines.cpu.torchscript import TorchScriptSteps, enabled
from pa3dfl.engines.sequential import CHUNK, Sequential
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Client, Task

T = TypeVar("T")


class Threaded(Sequential):
    name = "threaded"

    def __init__(self, threads: int) -> None:
        # Fix this thread's number of cores before the pool's threads change the default.
        torch.get_num_threads()
        # Kept between rounds, because each thread builds its networks once.
        self._pool = ThreadPoolExecutor(threads, "client", initializer=_use_one_core)
        self._stopping = threading.Event()
        self._steps = TorchScriptSteps()
        self._stepper = self._steps.stepper if enabled() else local.stepper
        self.chunk = max(CHUNK, 4 * threads)  # large chunks, so that threads seldom wait for a chunk's last client

    def train_client(
        self, method: Method, task: Task, client: Client, start: Tree, fixed: Tree, rnd: int, purpose: str
    ) -> tuple[Tree, float]:
        return local.train(method, task, client, start, fixed, rnd, purpose, self._stepper, self._go_on)

    def each(self, work: Callable[[int], T], clients: Sequence[Client], tick: Tick) -> list[T]:
        self._stopping.clear()
        # The longest first, so that no long one starts when the other threads are almost done.
        order = sorted(range(len(clients)), key=lambda i: -clients[i].n * clients[i].width ** 2)
        places = {self._pool.submit(work, i): i for i in order}
        results: dict[int, T] = {}
        try:
            for done in as_completed(places):
                results[places[done]] = done.result()
                tick()
        except BaseException:  # an error in one of the threads, or Ctrl-C in this one
            self._stopping.set()
            for future in places:
                future.cancel()
            wait(places)
            raise
        return [results[i] for i in range(len(clients))]

    def _go_on(self) -> None:
        if self._stopping.is_set():
            raise _Stopped


class _Stopped(Exception):
    """Ends a client's work early, inside its thread."""


def _use_one_core() -> None:
    torch.get_num_threads()
    torch.set_num_threads(1)
