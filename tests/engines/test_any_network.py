"""Every method trains recurrent networks and attention, and every engine does it alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import graph_stream
from loopback import Nodes

from conftest import build, run
from pa3dfl import methods
from pa3dfl.core.tree import nbytes
from pa3dfl.data import Arrays
from pa3dfl.engines import Round
from pa3dfl.engines.cost import cost
from pa3dfl.engines.cpu import torchscript
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.engines.cuda import memory, program
from pa3dfl.engines.cuda.captured import Captured
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Task

NETWORKS = ("lstm", "gru", "rnn", "transformer")


def sequences(rows: int = 64) -> Arrays:
    """Tokens, of which two tell the class."""
    x, y = np.random.default_rng(0).integers(0, 12, (rows, 6)), np.arange(rows) % 4
    x[:, 2] = x[:, 5] = y
    return Arrays(x, y, 4)


def task_of(method: Method, network: str, **given: Any) -> Task:
    said = {"setting": "list:1,1/4,1/16,1/4", "p_min": "1/4", "lr": 0.1, "epochs": 2, "init": "pytorch"}
    return build(method, sequences(), model=f"sequences:{network}", **(said | given))


@pytest.fixture(autouse=True)
def networks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "models"))


@pytest.mark.parametrize("network", [*NETWORKS, "pooled", "branches"])
@pytest.mark.parametrize("name", methods.registry())
def test_all_methods_train_it(name: str, network: str) -> None:
    method = methods.find(name)()
    task = task_of(method, network)
    played = run(method, task, rounds=2, per_round=4)  # updates pass the guard
    losses = [float(np.mean([u.loss for u in updates])) for updates in played.rounds]
    assert np.isfinite(losses).all()
    client = task.clients[1]
    [record] = cost(method, task.model, task.p_min, 10, [client.width])
    update = next(u for u in played.rounds[0] if u.client == client)
    assert (record["bytes_up"], record["bytes_down"]) == (nbytes(update.tree) // 2, update.bytes_down // 2)
    trained = [v for k, v in update.tree.items() if "classes/" not in k]
    assert all(torch.isfinite(v).all() for v in trained)
    scores = Sequential().evaluate(
        Round(method, task, played.servers[-1], played.private, task.clients, 3), ["adapted"]
    )
    assert len(scores) == 4


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["fedavg", "pa3dfl", "flanc"])
def test_engines_agree(
    name: str, network: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torchscript, "OFTEN", 2)
    monkeypatch.setattr(program, "GraphStream", graph_stream)
    monkeypatch.setattr(memory, "free_memory", lambda device: 1 << 40)
    method = methods.find(name)()
    task = task_of(method, network)
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}

    def work() -> Round:
        return Round(method, task, {k: v.clone() for k, v in server.items()}, {}, task.clients, 1)

    expected = Sequential().train(work())
    others = {"threaded": Threaded(2), "captured": Captured(), "flower": Nodes(method, task, tmp_path).engine()}
    for engine_name, engine in others.items():
        for ours, theirs in zip(expected, engine.train(work()), strict=True):
            for k, v in ours.tree.items():
                torch.testing.assert_close(theirs.tree[k], v, rtol=0, atol=1e-11, msg=f"{engine_name} {k}")
        engine.close()
    assert not caplog.records, "all steps were recorded"
