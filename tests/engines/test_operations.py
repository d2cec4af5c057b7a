"""How many operations a local step is on a GPU, where each is a kernel or two, however small its work.

Tensors without numbers ("meta") stand for a GPU's: they take the ways of a network that are not a CPU's own.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import make_arrays
from pa3dfl import methods
from pa3dfl.core.tree import Tree
from pa3dfl.engines import local
from pa3dfl.engines.cuda.packed import Packed

ROWS = 50


class Operations(TorchDispatchMode):
    """Counts operations that do more than make a view."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(("name", "most"), [("fedavg", 48), ("heterofl", 51), ("pa3dfl", 96)])
def test_a_step_has_few_operations(name: str, most: int, make_task: Callable[..., Any]) -> None:
    method = methods.find(name)()
    task = make_task(method, make_arrays(shape=(1, 28, 28)), precision="fp32")
    client = task.clients[0]
    [down] = method.download(task, method.init_server(task), [client], 1)
    start, fixed = map(without_numbers, method.begin(task, client, down, method.init_client(task, client)))
    packed = Packed(method, start)
    batch = torch.empty(ROWS, 1, 28, 28, device="meta"), torch.empty(ROWS, dtype=torch.int64, device="meta")
    sgd, rate = local.SGD(task.local, packed.groups), torch.empty((), device="meta")
    with Operations() as operations:
        local.descend(method, task, client.width, packed.tree(), fixed, batch, {}, sgd, rate)
    assert 0.8 * most < operations.count <= most  # far fewer ask for a lower bound


def without_numbers(tree: Tree) -> Tree:
    return {k: v.to("meta") for k, v in tree.items()}
