"""CUDA graphs that may run beside each other.

A graph reads and writes the tensors that it was recorded with: whoever records owns them and keeps them. Recordings of
two recorders share nothing: each has its memory pool, and a stream on which it records *and* replays. The last is not
a detail: a graph keeps the cuBLAS workspace of the stream it was recorded on, and two graphs that share one overwrite
each other's partial sums, without an error, when they run at the same time.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

Replay = Callable[[], None]


class Recorder:
    """Records functions as graphs on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.taken = 0  # bytes of memory, by all recordings
        self.stream = torch.cuda.Stream(device)
        self.pool: Any = torch.cuda.graph_pool_handle()

    def running(self) -> Any:
        """Work inside this context goes to the own stream."""
        return torch.cuda.stream(self.stream)

    def idle(self) -> bool:
        """Whether all that it was given is done."""
        return self.stream.query()

    def follow(self) -> None:
        """What runs here next comes after all that the caller's stream has been given."""
        self.stream.wait_stream(torch.cuda.current_stream())

    def join(self) -> None:
        """What the caller's stream is given next comes after all that runs here."""
        torch.cuda.current_stream().wait_stream(self.stream)

    def record(self, work: Replay, trial: Replay | None = None) -> Replay:
        """Libraries choose their kernels on first use, which a capture does not allow: new work is tried first."""
        before = torch.cuda.memory_reserved()
        self.follow()
        with self.running():
            for _ in range(3):
                if trial:
                    trial()
        graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            work()
        self.join()
        self.taken += torch.cuda.memory_reserved() - before
        return partial(_replay, graph, work)


@contextmanager
def _no_collection() -> Iterator[None]:
    """An old graph that is collected as garbage during a capture would end the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _replay(graph: torch.cuda.CUDAGraph, work: Replay) -> None:
    """Holds `work` as well: the tensors that it closes over are read at their old addresses."""
    graph.replay()
