from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conftest import learns
from pa3dfl.core.tree import Tree, wire
from pa3dfl.methods.pfedhn import PFedHN, hypernetwork
from pa3dfl.methods.problem import Task

Make = Callable[..., Any]
HEAD = {"head.weight", "head.bias"}
# Large enough for a step to be visible to the last of the compared digits.
METHOD = PFedHN(embedding=3, hidden=6, layers=2, hn_lr=0.05)


def state(method: PFedHN, task: Task) -> Tree:
    return {k: v.double() for k, v in method.init_server(task).items()}


def by_hand(server: Tree, client: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The authors' network for two hidden layers: linear, (relu, linear) twice, a linear output."""
    e = server["embeddings"][client]
    e = server["encoder.0.weight"] @ e + server["encoder.0.bias"]
    e = server["encoder.1.weight"] @ F.relu(e) + server["encoder.1.bias"]
    e = server["encoder.2.weight"] @ F.relu(e) + server["encoder.2.bias"]
    return (server[f"decoder.{name}.weight"] @ e + server[f"decoder.{name}.bias"]).view(shape)


def objective(server: Tree, trained: dict[int, Tree]) -> torch.Tensor:
    parts = [
        0.5 * (by_hand(server, i, k, v.shape) - v).square().sum()
        for i, tree in trained.items()
        for k, v in tree.items()
    ]
    return torch.stack(parts).sum() / len(trained)


def moved(task: Task, server: Tree, ids: list[int], by: float) -> dict[int, Tree]:
    g = torch.Generator().manual_seed(1)
    downs = METHOD.download(task, server, [task.clients[i] for i in ids], 1)
    return {
        i: {k: v + by * torch.randn(v.shape, generator=g, dtype=v.dtype) for k, v in down.items()}
        for i, down in zip(ids, downs, strict=True)
    }


def test_a_client_is_sent_the_encoder_generated_from_its_embedding(make_task: Make) -> None:
    task = make_task(METHOD)
    server = state(METHOD, task)
    assert "tau" not in server
    downs = METHOD.download(task, server, task.clients, 1)
    shapes = {k: s for k, s in task.model.shapes(task.p_min).items() if k not in HEAD}
    for client, down in zip(task.clients, downs, strict=True):
        assert {k: tuple(v.shape) for k, v in down.items()} == shapes
        for k, v in down.items():
            torch.testing.assert_close(v, by_hand(server, client.id, k, shapes[k]), rtol=0, atol=1e-12)
    assert not torch.equal(downs[0]["conv1.weight"], downs[1]["conv1.weight"])


def test_the_gradient_equals_autograd_of_the_objective(make_task: Make) -> None:
    task = make_task(METHOD)
    server = state(METHOD, task)
    trained = moved(task, server, [0, 2], by=0.1)
    params = {k: v.clone().requires_grad_() for k, v in server.items()}
    expected = torch.autograd.grad(objective(params, trained), list(params.values()))
    gradient = hypernetwork(METHOD, task, task.clients[0].width).gradient(server, [0, 2], list(trained.values()))
    assert gradient.keys() == server.keys()
    for k, g in zip(params, expected, strict=True):
        torch.testing.assert_close(gradient[k], g, rtol=0, atol=1e-10)
    assert float(gradient["embeddings"][[1, 3]].abs().max()) == 0, "who was not sampled does not move"
    assert all(float(gradient["embeddings"][i].norm()) > 0 for i in (0, 2))


@pytest.mark.parametrize("by", [0.01, 5.0])
def test_aggregation_is_one_step_of_clipped_sgd(make_task: Make, play: Make, by: float) -> None:
    task = make_task(METHOD)
    server = state(METHOD, task)
    ids = [0, 1, 3]
    trained = moved(task, server, ids, by)
    params = {k: v.clone().requires_grad_() for k, v in server.items()}
    optimizer = torch.optim.SGD(params.values(), lr=METHOD.hn_lr)
    objective(params, trained).backward()
    norm = torch.nn.utils.clip_grad_norm_(params.values(), METHOD.hn_clip)
    assert (norm > METHOD.hn_clip) == (by > 1), "one case with clipping, one without"
    optimizer.step()
    updates = play(METHOD, task, rounds=1, per_round=3).rounds[0]
    for update, i in zip(updates, ids, strict=True):
        update.client, update.tree = task.clients[i], trained[i]
    after = METHOD.aggregate(task, server, updates, 1)
    assert after.keys() == params.keys()
    for k, v in params.items():
        torch.testing.assert_close(after[k], v.detach(), rtol=0, atol=1e-6)


def test_the_head_stays_on_the_client(make_task: Make, play: Make) -> None:
    task = make_task(METHOD)
    played = play(METHOD, task, rounds=3)
    for update in (u for updates in played.rounds for u in updates):
        assert set(update.private) == HEAD
        assert not HEAD & set(update.tree)
        fresh = METHOD.init_client(task, update.client)
        assert not torch.equal(update.private["head.weight"], fresh["head.weight"].double())
    assert not any("head" in k for k in played.servers[0])


def test_tested_is_the_generated_encoder_under_the_own_head(make_task: Make, play: Make) -> None:
    task = make_task(METHOD)
    played = play(METHOD, task, rounds=2, per_round=4)
    downs = METHOD.download(task, played.servers[-1], task.clients, 2)
    for client, down in zip(task.clients, downs, strict=True):
        theta, fixed = METHOD.begin(task, client, wire(down), played.private[client.id])
        tested = METHOD.personal(task, client.width, theta, theta, fixed)[1.0]
        assert set(tested) == set(task.model.shapes(client.width))
        for k, v in tested.items():
            assert torch.equal(v, played.private[client.id][k] if k in HEAD else down[k])


def test_clients_start_near_the_models_initial_parameters(make_task: Make) -> None:
    """Norms must start near one, and the model's own rule for each layer holds."""
    method = PFedHN()
    task = make_task(method, model="resnet18-gn")
    [down] = method.download(task, state(method, task), task.clients[:1], 1)
    own = task.model.init(task.p_min, 0)
    for k, v in down.items():
        if v.ndim == 1 and own[k].std() == 0:
            assert torch.equal(v, own[k].double())
        elif v.numel() > 100:
            assert 0.8 < float(v.std() / own[k].std()) < 1.3, k


def test_the_default_sizes_are_the_papers() -> None:
    method = PFedHN()
    assert (method.embedding, method.hidden, method.layers, method.hn_clip) == (5, 100, 2, 50.0)


def test_pfedhn_learns(make_task: Make) -> None:
    method = PFedHN()
    task = make_task(method, lr=0.1, epochs=5, setting="list:1/4,1/4,1/4,1/4")
    learns(method, task, rounds=3, share=0.8)
