"""The convergence experiment reads true gradients; embeddings of a run are those of its hyper-network."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_arrays
from pa3dfl.core.tree import take
from pa3dfl.experiments.reproduce import convergence, embeddings
from pa3dfl.federation.checkpoint import Checkpoints
from pa3dfl.methods import assembly
from pa3dfl.methods.pa3dfl.method import HN, U, hypernetwork


def test_recorded_steps_contain_the_objectives_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    made = convergence.make(rows=6)
    method, task = made
    [first, second] = convergence.descend(made, 2)
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    leaves = {k: v.requires_grad_() for k, v in server.items() if k.startswith(U)}
    total = torch.zeros((), dtype=task.dtype)
    for client, down in zip(task.clients, method.download(task, server, task.clients, 1), strict=True):
        theta, fixed = method.begin(task, client, down | leaves, {})
        batch = task.data.batch(task.data.rows(client.id, "train"), None, task.dtype)
        total = total + method.loss(task, client.width, theta, fixed, batch, {}) / len(task.clients)
    slope = torch.autograd.grad(total, list(leaves.values()))
    assert first["F"] == pytest.approx(float(total.detach()), rel=1e-9)
    assert first["general"] == pytest.approx(sum(float(g.square().sum()) for g in slope), rel=1e-6)

    # To first order F falls by η times all squared gradients; those of the biases are not recorded.
    monkeypatch.setattr(convergence, "ETA", 1e-6)
    near, after = convergence.descend(convergence.make(rows=6), 2)
    assert near["general"] == pytest.approx(first["general"], rel=1e-3)
    fall = (near["F"] - after["F"]) / 1e-6
    assert near["general"] + near["personal"] < fall < 1.2 * (near["general"] + near["personal"])
    assert second["F"] < first["F"]


def test_both_sides_of_the_bound() -> None:
    steps = [
        {"F": 8.0, "eta": 0.5, "general": 4.0, "personal": 2.0},
        {"F": 6.0, "eta": 0.25, "general": 2.0, "personal": 1.0, "L_u": 1.0, "L_phi": 2.0},
    ]
    one = 0.5 * (1 - 0.5) * 2 + 0.5 * (1 - 0.25) * 4
    two = one + 0.25 * (1 - 0.25) * 1 + 0.25 * (1 - 0.125) * 2
    assert convergence.sides(steps) == [(pytest.approx(one), 8.0), (pytest.approx(two / 2), 4.0)]


def test_the_experiment_is_recorded_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert convergence.picture(tmp_path, tmp_path / "c.png") is None
    path = convergence.run(tmp_path, rounds=3, rows=6)
    title, picture = convergence.picture(tmp_path, tmp_path / "c.png") or ("", tmp_path)
    assert "4 clients, one full-batch step each a round, γ = 1, η = 0.004·0.998^t" in title
    assert picture.read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(convergence, "make", None)
    assert convergence.run(tmp_path) == path


def test_embeddings_come_from_the_checkpoint(tmp_path: Path) -> None:
    arrays = make_arrays(120)
    np.savez(tmp_path / "tiny.npz", x=arrays.x, y=arrays.y)
    given = {"data": str(tmp_path / "tiny.npz"), "model": "cnn-fashion", "clients": 6, "partition": "classes"}
    config = assembly.configure(given | {"device": "cpu"})
    method = assembly.make_method(config)
    task = assembly.make_task(config, method, arrays)
    server = method.init_server(task)
    Checkpoints(tmp_path / "checkpoints").save(1, server, {}, set(), {}, {})
    found = embeddings.record(config, tmp_path / "checkpoints")
    assert found
    encoded = np.array(found["encoded"])
    assert np.linalg.norm(encoded, axis=1) == pytest.approx(1, abs=0.02)
    # Attention over these very vectors gives the mixes of the method's own hyper-network.
    mixes = hypernetwork(method, task).mixes(take(HN, server), [0])[0, 0].detach().numpy()
    weights = np.exp(encoded @ encoded[0] / server[HN + "tau"][0].item())
    assert weights @ encoded / weights.sum() == pytest.approx(mixes, abs=5e-3)
    owned = [{int(y) for y in arrays.y[rows]} for rows in assembly.owners(config, arrays)[1]]
    assert all(dominant in classes for dominant, classes in zip(found["dominant"], owned, strict=True))
    assert embeddings.record(config, tmp_path / "none") is None


def test_principal_components() -> None:
    angle = math.radians(30)
    line = np.outer([-2.0, -1.0, 0.0, 1.0, 2.0], [math.cos(angle), math.sin(angle), 0.0])
    assert np.abs(embeddings.plane(line)[:, 0]) == pytest.approx([2, 1, 0, 1, 2])
    assert embeddings.plane(line)[:, 1] == pytest.approx([0] * 5, abs=1e-12)


def test_the_map_is_drawn(tmp_path: Path) -> None:
    encoded = np.random.default_rng(0).normal(size=(9, 4))
    path = embeddings.picture(encoded, np.arange(9) % 3, "nine clients", tmp_path / "e.png")
    assert path.read_bytes()[:4] == b"\x89PNG"
