"""Counts the multiply-adds of PyTorch code on tensors that have shapes and no contents."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pa3dfl.core.randomness import generator
from pa3dfl.core.tree import Tree, on_meta
from pa3dfl.data import FederatedData, Split
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Client, Task

META = torch.device("meta")


def count_of(run: Callable[[], Tensor]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    # The counter follows the convention of two operations for each multiply-add.
    return int(counter.get_total_flops()) // 2


def of_step(method: Method, task: Task, client: Client, down: Tree) -> int | None:
    """Forward multiply-adds of one local step of a client; None for a network that cannot run without contents."""
    width, batch = client.width, task.local.batch
    none = np.empty(0, np.int64)
    x = task.model.blank(batch, META)
    y = torch.empty(batch, dtype=torch.int64, device=META)
    data = FederatedData(x, y, [Split(none, none, none)], task.model.classes, None, None, augment=False)
    blank = replace(task, data=data, clients=[replace(client, id=0)], device=META, compute=None)
    try:
        start = method.begin(task, client, down, method.init_client(task, client))
        theta, fixed = (on_meta(tree) for tree in start)
        draws = method.draw(task, width, generator(0, "cost"))
        return count_of(lambda: method.loss(blank, Fraction(width), theta, fixed, (x, y), draws))
    except (RuntimeError, NotImplementedError):
        return None
