"""CUDA graphs and streams on a CPU, as unkind as real ones may be.

A capture runs nothing and reads no values. A replay does the same operations at the same addresses, whatever Python
has bound to its names since. What a stream is given may be done at once, before what others were given earlier, or not
before somebody waits for it.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pa3dfl.engines.cuda.graphs import GraphStream, Replay


class Graph(TorchDispatchMode):
    """Operations with their very tensors, all of which it keeps: no address is used twice."""

    def __init__(self, work: Replay) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # what it did not make, and wrote to
        self._made: set[int] = set()
        self.read: dict[int, Tensor] = {}  # or written, and not made
        with self:
            work()
        for memory, content in self._before.values():
            memory.copy_(content)
        for *_, made in self._calls:
            for _, tensor in made:
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output in func.tags and not self._with_the_host(args[0]):
            raise RuntimeError(f"{func} reads values during a capture")
        given = {p.name: a for p, a in zip(func._schema.arguments, args, strict=False)} | kwargs
        for parameter in func._schema.arguments:
            if parameter.alias_info and parameter.alias_info.is_write:
                for tensor in _tensors(given[parameter.name]):
                    self._keep(tensor)
        known = {_address(t): t for t in _tensors(given)}
        self.read |= {address: t for address, t in known.items() if address not in self._made}
        if torch.Tag.inplace_view in func.tags:  # a graph knows memory, not in which shape Python sees it
            return func(*args, **kwargs)
        args, kwargs = tree_map(_as_it_is, (args, kwargs))
        out = func(*_within_range(func, args), **kwargs)
        made = [(i, _as_it_is(t)) for i, t in enumerate(_tensors(out)) if _address(t) not in known]
        self._made |= {_address(t) for _, t in made}
        self._calls.append((func, args, kwargs, made))
        return out

    def _with_the_host(self, tensor: Tensor) -> bool:
        """What a step draws: a number that was there before."""
        return not tensor.is_floating_point() and tensor.ndim == 0 and _address(tensor) not in self._made

    def _keep(self, tensor: Tensor) -> None:
        if _address(tensor) not in self._made | self._before.keys():
            memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            self._before[_address(tensor)] = memory, memory.clone()

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, made in self._calls:
            again = _tensors(func(*args, **kwargs))
            for i, tensor in made:
                tensor.copy_(again[i])


class Late(GraphStream):
    """One whose stream does nothing until somebody waits for it, and sees nothing that it was not told to wait for."""

    def __init__(self) -> None:
        self.taken = 0
        self._given: list[Graph] = []
        self._reads: dict[int, Tensor] = {}
        self._seen: dict[int, int] = {}  # versions of what it reads

    def running(self) -> Any:
        return nullcontext()

    def idle(self) -> bool:
        return not self._given

    def follow(self) -> None:
        self._seen.update(self._versions())

    def join(self) -> None:
        while self._given:
            before = self._versions()
            self._given.pop(0).replay()
            for address, version in self._versions().items():
                self._seen[address] += version - before[address]

    def capture(self, work: Replay, trial: Replay | None = None) -> Replay:
        self.join()
        if trial:
            trial()
        graph = Graph(work)
        self._reads |= graph.read
        self.follow()
        return lambda: self._give(graph)

    def _give(self, graph: Graph) -> None:
        assert self._versions() == self._seen, "a stream may run before what it reads is written: `follow` is missing"
        self._given.append(graph)

    def _versions(self) -> dict[int, int]:
        return {address: tensor._version for address, tensor in self._reads.items()}


def graph_stream(device: torch.device) -> GraphStream:
    return GraphStream(device) if device.type == "cuda" else Late()


def _as_it_is(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _within_range(func: Any, args: Any) -> Any:
    """Where nothing runs, positions that a pass has left at its end are no error."""
    return (*args[:2], torch.zeros_like(args[2])) if func is torch.ops.aten.index_select.default else args


def _tensors(values: Any) -> list[Tensor]:
    return [t for t in tree_leaves(values) if isinstance(t, Tensor)]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
