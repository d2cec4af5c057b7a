"""Replayed steps are the sequential ones. Needs a GPU; on a machine without one only the refusal is tested."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pa3dfl import methods
from pa3dfl.engines import engine_of
from pa3dfl.errors import UserError

Make = Callable[..., Any]


def test_refused_without_a_gpu() -> None:
    with pytest.raises(UserError, match="needs a CUDA GPU"):
        engine_of("captured", torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", methods.registry())
def test_equal_to_the_sequential_engine(name: str, make_task: Make) -> None:
    """Two rounds, so that a replay starts from other weights than it was captured with; partial batches too."""
    method = methods.find(name)()
    task = make_task(method, device="cuda", epochs=2)
    ends = []
    for engine in (engine_of("sequential", task.device), engine_of("auto", task.device)):
        server = {k: v.to(task.device, task.dtype) for k, v in method.init_server(task).items()}
        private: dict[int, Any] = {}
        for rnd in (1, 2):
            updates = engine.train(method, task, server, private, task.clients, rnd, lambda: None)
            private |= {u.client.id: u.private for u in updates if u.private}
            server = method.aggregate(task, server, updates, rnd)
        ends.append(server)
    for k, v in ends[0].items():
        torch.testing.assert_close(ends[1][k], v, rtol=0, atol=1e-9)
