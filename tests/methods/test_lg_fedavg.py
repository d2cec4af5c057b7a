from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch

from conftest import learns
from pa3dfl.core.tree import wire
from pa3dfl.engines import Round
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods.lg_fedavg import LGFedAvg

Make = Callable[..., Any]
HEAD = {"head.weight", "head.bias"}


def test_only_the_head_is_sent(make_task: Make, play: Make) -> None:
    method = LGFedAvg()
    task = make_task(method)
    played = play(method, task, rounds=3, per_round=3)
    assert all(set(server) == HEAD for server in played.servers)
    for update in (u for updates in played.rounds for u in updates):
        assert set(update.tree) == HEAD
        assert update.bytes_down == 8 * (4 * 128 + 4)
        shapes = task.model.shapes(update.client.width)
        assert {k: tuple(v.shape) for k, v in update.private.items()} == {
            k: s for k, s in shapes.items() if k not in HEAD
        }


def test_every_client_has_its_own_width_and_one_head_fits_all(make_task: Make) -> None:
    task = make_task(LGFedAvg())
    assert [c.width for c in task.clients] == [Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1, 16)]
    assert {task.model.shapes(c.width)["head.weight"] for c in task.clients} == {(4, 128)}
    assert len({task.model.shapes(c.width)["conv1.weight"] for c in task.clients}) == 4


def test_the_head_is_the_mean_by_data_size(make_task: Make, play: Make) -> None:
    method = LGFedAvg()
    # 160 rows do not divide by 3, so that the weights differ.
    task = make_task(method, clients=3, setting="list:1/16,1/4,1/256", p_min="1/16", batch=7)
    played = play(method, task, rounds=2, per_round=3)
    assert len({c.n for c in task.clients}) > 1
    for server, updates in zip(played.servers[1:], played.rounds, strict=True):
        total = sum(u.n for u in updates)
        for k in HEAD:
            expected = sum(u.n * u.tree[k] for u in updates) / total
            torch.testing.assert_close(server[k], expected, rtol=0, atol=1e-12)


def test_a_client_goes_on_from_its_own_layers_under_the_new_head(make_task: Make, play: Make) -> None:
    method = LGFedAvg()
    task = make_task(method)
    played = play(method, task, rounds=2, per_round=4)
    for client in task.clients:
        theta, fixed = method.begin(task, client, wire(played.servers[-1]), played.private[client.id])
        tested = method.personal(task, client.width, theta, theta, fixed)[1.0]
        assert set(tested) == set(task.model.shapes(client.width))
        for k, v in tested.items():
            assert torch.equal(v, played.servers[-1][k] if k in HEAD else played.private[client.id][k])
    # Round 2 moved the layers that round 1 had left.
    first, second = (next(u for u in r if u.client.id == 0).private for r in played.rounds)
    step = sum(float((first[k] - second[k]).norm()) for k in first)
    fresh = {k: v.double() for k, v in method.init_client(task, task.clients[0]).items()}
    assert step < sum(float((fresh[k] - second[k]).norm()) for k in first)


def test_clients_of_one_width_start_alike(make_task: Make) -> None:
    method = LGFedAvg()
    task = make_task(method, setting="levels:1/16,1/4")
    starts = {c.width: method.init_client(task, c) for c in task.clients}
    for client in task.clients:
        for k, v in method.init_client(task, client).items():
            assert torch.equal(v, starts[client.width][k])


def test_lg_fedavg_learns(make_task: Make) -> None:
    method = LGFedAvg()
    task = make_task(method, lr=0.1, epochs=5, setting="list:1/16,1/16,1/4,1/256")
    played = learns(method, task, rounds=4, share=0.7)
    scores = Sequential().evaluate(
        Round(method, task, played.servers[-1], played.private, task.clients, 4), ["received"]
    )
    assert sum(s.test_accuracy for s in scores) / 4 > 0.4
