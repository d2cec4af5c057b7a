"""The memory of a client's training, measured on real local steps."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pa3dfl.core.randomness import generator
from pa3dfl.core.tree import Tree, wire
from pa3dfl.engines import local
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Client, Task


def peak_training_bytes(method: Method, task: Task, client: Client, start: Tree, fixed: Tree) -> int:
    """The largest number of bytes alive at a time in local training: trainable and fixed tree, a batch, activations and
    gradients. It does not include the stored data, nor, on a CPU, temporary memory inside kernels.
    """
    if task.device.type != "cuda":
        live = LiveBytes()
        with live:
            _train(method, task, client, start, fixed)
        return live.peak
    before = torch.cuda.memory_allocated(task.device)
    torch.cuda.reset_peak_memory_stats(task.device)
    _train(method, task, client, start, fixed)
    return int(torch.cuda.max_memory_allocated(task.device) - before)


def _train(method: Method, task: Task, client: Client, start: Tree, fixed: Tree) -> None:
    theta, fixed = {k: v.requires_grad_() for k, v in wire(start).items()}, wire(fixed)
    rate = torch.tensor(task.local.rate(1), dtype=task.dtype, device=task.device)
    step = local.stepper(method, task, client.width, theta, fixed, rate)
    rows = task.data.rows(client.id, "train").to(task.device)
    for number in range(2):  # the second includes memory that the first has left
        draws = method.draw(task, client.width, generator(task.seed, "footprint", number))
        step(task.data.batch(rows, None, task.dtype), draws)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations made and that still exist. Exact and reproducible."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(out):
            if storage._cdata not in self._alive and storage._cdata not in given:
                self._note(storage, storage._cdata, storage.nbytes())
        return out

    def _note(self, storage: Any, key: int, size: int) -> None:
        def dropped(_: Any) -> None:
            self.now -= size
            del self._alive[key]

        # A storage's Python object lives as long as anything references the storage, such as a saved activation.
        self._alive[key] = weakref.ref(storage, dropped)
        self.now += size
        self.peak = max(self.peak, self.now)


def _storages(tree: Any) -> list[Any]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
