from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pa3dfl.core.tree import Tree, take, wire
from pa3dfl.engines import Round
from pa3dfl.engines.accounting import in_head
from pa3dfl.engines.local import batches
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods.ditto import Ditto, V, W
from pa3dfl.methods.fedavg import FedAvg

Make = Callable[..., Any]


def same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("clip_norm", [0.5, 0.0])
def test_the_server_equals_fedavgs_bit_for_bit(make_task: Make, play: Make, precision: str, clip_norm: float) -> None:
    said = {"precision": precision, "clip_norm": clip_norm}
    ditto, fedavg = Ditto(mu=10.0), FedAvg()
    mine = play(ditto, make_task(ditto, **said))
    theirs = play(fedavg, make_task(fedavg, **said))
    for a, b in zip(mine.servers, theirs.servers, strict=True):
        assert same(a, b)
    assert not same(mine.servers[0], mine.servers[-1])


def test_clipping_occurs_in_the_test_above(make_task: Make, play: Make) -> None:
    """Otherwise the test above proves nothing about clipping."""
    ends = [play(Ditto(), make_task(Ditto(), clip_norm=c)).servers[-1] for c in (0.5, 0.0)]
    assert not same(*ends)


def test_a_client_trains_both_models_on_the_same_batches(make_task: Make) -> None:
    """Against two plain loops over the same batches, with clipping and weight decay."""
    method = Ditto(mu=0.7)
    task = make_task(method, clip_norm=0.5, epochs=2, weight_decay=0.01)
    client = task.clients[1]
    received = {k: v.double() for k, v in method.init_server(task).items()}
    g = torch.Generator().manual_seed(0)
    start_v = {k: v + 0.05 * torch.randn(v.shape, dtype=v.dtype, generator=g) for k, v in received.items()}
    [update] = Sequential().train(Round(method, task, received, {client.id: start_v}, [client], 1))

    for mu, start, trained in ((0.0, received, update.tree), (0.7, start_v, update.private)):
        params = {k: v.clone().requires_grad_() for k, v in start.items()}
        for x, y in batches(task, client, 1, "train"):
            pull = sum((params[k] - received[k]).square().sum() for k in params)
            loss = F.cross_entropy(task.model(params, x, client.width), y) + mu / 2 * pull
            gradients = torch.autograd.grad(loss, list(params.values()))
            norm = float(torch.cat([g.flatten() for g in gradients]).norm())
            with torch.no_grad():
                for p, g in zip(params.values(), gradients, strict=True):
                    p -= task.local.rate(1) * (g * min(1, 0.5 / norm) + 0.01 * p)
        for k, v in params.items():
            torch.testing.assert_close(trained[k], v.detach(), rtol=0, atol=1e-10)


def test_the_personal_model_never_leaves_the_client(make_task: Make, play: Make) -> None:
    method = Ditto()
    task = make_task(method)
    played = play(method, task, rounds=3)
    names = set(task.model.shapes(task.clients[0].width))
    for update in (u for updates in played.rounds for u in updates):
        assert set(update.tree) == set(update.private) == names
        assert all(not torch.equal(update.tree[k], update.private[k]) for k in names if k.endswith("weight"))
        assert update.bytes_down == sum(v.numel() * 8 for v in played.servers[0].values())
    assert all(set(server) == names for server in played.servers)


def test_private_state_of_round_t_is_where_round_t_plus_1_starts(make_task: Make) -> None:
    method = Ditto()
    task = make_task(method)
    down = {k: v.double() for k, v in method.init_server(task).items()}
    own = {k: v + 1 for k, v in down.items()}
    theta, fixed = method.begin(task, task.clients[0], down, own)
    assert same(take(W, theta), down)
    assert same(take(V, theta), own)
    assert same(fixed, down)
    newcomer, _ = method.begin(task, task.clients[0], down, {})
    assert same(take(V, newcomer), down)


def test_the_order_of_a_tree_does_not_matter(make_task: Make) -> None:
    """A checkpoint gives trees back in another order: a resumed run must not differ in a single bit."""
    method = Ditto()
    task = make_task(method, clip_norm=0.5, epochs=3, precision="fp32")
    down = method.init_server(task)
    own = {k: v + 0.1 for k, v in down.items()}
    a, b = (
        Sequential().train(Round(method, task, given, {1: mine}, [task.clients[1]], 1))[0]
        for given, mine in ((down, own), (dict(reversed(down.items())), dict(sorted(own.items()))))
    )
    assert same(a.tree, b.tree)
    assert same(a.private, b.private)
    assert a.loss == b.loss


def test_tested_is_the_personal_model(make_task: Make, play: Make) -> None:
    method = Ditto()
    task = make_task(method)
    played = play(method, task, rounds=2, per_round=4)
    client = task.clients[0]
    theta, fixed = method.begin(task, client, wire(played.servers[-1]), played.private[client.id])
    candidates = method.personal(task, client.width, theta, theta, fixed)
    assert same(candidates[1.0], played.private[client.id])
    poisoned = {k: torch.full_like(v, torch.nan) for k, v in played.servers[-1].items()}
    scores = [
        Sequential().evaluate(Round(method, task, server, played.private, task.clients, 2), ["received"])
        for server in (played.servers[-1], poisoned)
    ]
    assert scores[0] == scores[1], "a client that took part is tested without the global model"


def test_a_strong_pull_keeps_the_personal_model_at_the_global_one(make_task: Make, play: Make) -> None:
    def distance(mu: float) -> float:
        method = Ditto(mu=mu)
        played = play(method, make_task(method, clip_norm=0.0, weight_decay=0.0, epochs=5), rounds=1)
        update = played.rounds[0][0]
        return float(sum((update.private[k] - played.servers[0][k]).norm() for k in update.private))

    assert distance(10.0) < 0.3 * distance(0.0)


def test_all_clients_have_the_smallest_width_and_both_heads_count_as_heads(make_task: Make) -> None:
    method = Ditto()
    task = make_task(method)
    assert {c.width for c in task.clients} == {task.p_min}
    theta, _ = method.begin(task, task.clients[0], method.init_server(task), {})
    heads = {k for k in theta if in_head(method, task, k)}
    assert heads == {"w/head.weight", "w/head.bias", "v/head.weight", "v/head.bias"}
    groups = method.clip_groups(theta)
    assert sorted(k for g in groups for k in g) == sorted(theta)
