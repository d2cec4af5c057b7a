"""Precision is of local arithmetic alone: what goes over a wire stays as it is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.engines import Round
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import assembly

Make = Callable[..., Any]


@pytest.mark.parametrize("name", methods.registry())
def test_bfloat16_trains_float32_weights(name: str, make_task: Make) -> None:
    """Products have three significant digits: the loss is near; equal bits would mean that nothing was narrowed."""
    method = methods.find(name)()
    updates = {}
    for precision in ("fp32", "bf16"):
        task = make_task(method, precision=precision, setting="list:1/4,1/4,1/16,1/16", lr=0.01)
        [updates[precision]] = Sequential().train(
            Round(method, task, method.init_server(task), {}, task.clients[:1], 1)
        )
        work = Round(method, task, method.init_server(task), {}, task.clients[:1], 1, "loss")
        [score] = Sequential().evaluate(work, ["received"])
        assert 0 < score.val_loss < 10
    exact, narrow = updates["fp32"], updates["bf16"]
    assert all(v.dtype == torch.float32 for v in narrow.tree.values())
    assert narrow.loss == pytest.approx(exact.loss, rel=0.03)
    assert narrow.loss != exact.loss


def test_a_product_in_bfloat16(make_task: Make) -> None:
    task = make_task(methods.find("fedavg")(), precision="bf16")
    one = torch.tensor([[1.0 + 2**-9]])  # rounds to 1 in eight bits
    with task.arithmetic():
        assert float(one @ one) == 1.0
    with make_task(methods.find("fedavg")(), precision="fp32").arithmetic():
        assert float(one @ one) > 1.003


def test_tf32_needs_a_gpu() -> None:
    with pytest.raises(UserError, match="precision 'tf32' is arithmetic of CUDA GPUs: use fp32 or bf16 on a CPU"):
        assembly.configure({"precision": "tf32", "device": "cpu"})
