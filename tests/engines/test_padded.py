"""Unequal lengths in the networks of the package: an engine sees the lengths of each batch, not of the first."""

import numpy as np
import pytest
import torch
from graphs import graph_stream

from conftest import build
from pa3dfl import methods
from pa3dfl.data import Arrays
from pa3dfl.engines import Round
from pa3dfl.engines.cpu import torchscript
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.engines.cuda import memory, program
from pa3dfl.engines.cuda.captured import Captured
from pa3dfl.engines.sequential import Sequential

ROWS, LONGEST = 36, 8


def unequal(channels: int) -> Arrays:
    """Rows of client 0 are the longest, so that a recording of its steps has no padding in it."""
    rng = np.random.default_rng(0)
    lengths = np.where(np.arange(ROWS) % 3 == 0, LONGEST, rng.integers(1, LONGEST, ROWS))
    x = rng.integers(1, 12, (ROWS, *([channels] if channels else []), LONGEST))
    x = x * (np.arange(LONGEST) < lengths.reshape(-1, *[1] * (x.ndim - 1)))
    x = x.astype(np.float32) / 6 if channels else x
    return Arrays(x, np.arange(ROWS) // 3 % 4, 4, np.arange(ROWS) % 3)


@pytest.mark.parametrize(
    ("network", "channels"), [("lstm-text", 0), ("transformer-text", 0), ("cnn-sensor", 2), ("transformer-sensor", 2)]
)
def test_engines_agree(network: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchscript, "OFTEN", 2)
    monkeypatch.setattr(program, "GraphStream", graph_stream)
    monkeypatch.setattr(memory, "free_memory", lambda device: 1 << 40)
    method = methods.find("fedavg")()
    task = build(
        method, unequal(channels), model=network, setting="levels:1/16", p_min="1/4", lr=0.1, epochs=2, batch=4
    )
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}

    def work() -> Round:
        return Round(method, task, {k: v.clone() for k, v in server.items()}, {}, task.clients, 1)

    expected = Sequential().train(work())
    for name, engine in {"threaded": Threaded(2), "captured": Captured()}.items():
        for ours, theirs in zip(expected, engine.train(work()), strict=True):
            for k, v in ours.tree.items():
                torch.testing.assert_close(theirs.tree[k], v, rtol=0, atol=1e-11, msg=f"{name} {k}")
        engine.close()
