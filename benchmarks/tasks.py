"""Tasks with the networks, shapes and clients of the paper on random bytes, and timing on a GPU."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pa3dfl.core.tree import Tree
from pa3dfl.data import Arrays
from pa3dfl.methods import assembly
from pa3dfl.methods.problem import Task

COHORT, BATCH = 20, 50
CASES = {  # data, model, rows of each client in all, shape, classes
    "fashion": ("fashion-mnist", "cnn-fashion", 600, (1, 28, 28), 10),
    "cifar100": ("cifar100", "cnn-cifar100", 500, (3, 32, 32), 100),
    "resnet": ("cifar10", "resnet18-gn", 500, (3, 32, 32), 10),
}


def make(case: str, name: str, precision: str, device: str = "cuda") -> tuple[Any, Task]:
    data, model, rows, shape, classes = CASES[case]
    rng = np.random.default_rng(0)
    arrays = Arrays(
        rng.integers(0, 256, (100 * rows, *shape), dtype=np.uint8), rng.integers(0, classes, 100 * rows), classes
    )
    config = assembly.configure({
        "data": data, "model": model, "method": name, "device": device, "precision": precision, "partition": "iid",
    })  # fmt: skip
    assembly.set_arithmetic(config)
    method = assembly.make_method(config)
    return method, assembly.make_task(config, method, arrays)


def timed(work: Callable[..., Any], repeats: int, prepare: Callable[[], tuple[Any, ...]] = lambda: ()) -> float:
    """Median seconds of `work`, after one run of it that is not counted; what `prepare` makes for it is not, either."""
    seconds = []
    for _ in range(repeats + 1):
        prepared = prepare()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work(*prepared)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
        del prepared  # before the next are made: they may fill the card
    return statistics.median(seconds[1:])


def start(method: Any, task: Task) -> Tree:
    return {k: v.to(task.device, task.dtype) for k, v in method.init_server(task).items()}


def cohort(task: Task) -> list[Any]:
    """Every fifth client by capacity: the widths of a typical round."""
    by_capacity = sorted(task.clients, key=lambda c: c.r)
    return sorted(by_capacity[4::5], key=lambda c: c.id)
