"""CUDA graphs that may run concurrently.

A graph reads and writes the tensors that it was captured with; the caller must keep them. Graphs of two `GraphStream`s
share nothing: each has a memory pool of its own, and a stream for capture *and* replay. Both must use the same stream,
because a graph keeps the cuBLAS workspace of the stream of its capture: two concurrent graphs with the same workspace
overwrite each other's partial sums without an error.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

Replay = Callable[[], None]


class GraphStream:
    """Captures functions as graphs on a stream of its own, and replays them there."""

    def __init__(self, device: torch.device) -> None:
        self.taken = 0  # bytes of memory of all graphs
        self.stream = torch.cuda.Stream(device)
        self.pool: Any = torch.cuda.graph_pool_handle()

    def running(self) -> Any:
        """A context in which work goes to this stream."""
        return torch.cuda.stream(self.stream)

    def idle(self) -> bool:
        """Whether the stream has finished its work."""
        return self.stream.query()

    def follow(self) -> None:
        """Make this stream wait for the work of the caller's stream so far."""
        self.stream.wait_stream(torch.cuda.current_stream())

    def join(self) -> None:
        """Make the caller's stream wait for the work of this stream so far."""
        torch.cuda.current_stream().wait_stream(self.stream)

    def capture(self, work: Replay, trial: Replay | None = None) -> Replay:
        """A function that replays `work`. New work needs a trial before, in which libraries choose their kernels."""
        torch.cuda.empty_cache()  # as a capture does: the memory that it frees would be subtracted from this graph's
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
    """Garbage collection of an old graph would abort a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _replay(graph: torch.cuda.CUDAGraph, work: Replay) -> None:
    """Replay the graph. The argument `work` keeps the tensors that the graph reads at fixed addresses."""
    graph.replay()
