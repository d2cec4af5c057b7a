"""TailorFL: which channels a client keeps, and how its submodel is scaled, averaged and tested."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from masks import LAYERS, METHOD, kept

from conftest import on_task
from pa3dfl.core.tree import take, wire
from pa3dfl.engines import Round
from pa3dfl.engines.local import train
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods.base import Update
from pa3dfl.methods.fedavg import FedAvg
from pa3dfl.methods.tailorfl.method import (
    IMPORTANCE,
    KNOWN,
    LAST,
    MASK,
    MODEL,
    TailorFL,
    importances,
    places_of,
)
from pa3dfl.models.channels import channels


def test_equal_full_widths_give_fedavg(make_task, play):
    ours = play(METHOD, make_task(METHOD, setting="ideal"), rounds=2).servers[-1]
    theirs = play(FedAvg(), make_task(FedAvg(), setting="ideal"), rounds=2).servers[-1]
    assert take(MODEL, ours).keys() == theirs.keys()
    for k, v in theirs.items():
        torch.testing.assert_close(ours[MODEL + k], v, rtol=0, atol=1e-9)


def test_a_client_keeps_exactly_its_share_in_every_round(make_task, play):
    task = make_task(METHOD)
    method = replace(METHOD, alpha=0.5)
    for server in play(method, task, rounds=3, per_round=3).servers:
        for layer, size in channels(task.model).sizes.items():
            masks = server[MASK + layer]
            assert set(masks.unique().tolist()) <= {0.0, 1.0}
            assert masks.sum(1).tolist() == [float(c.width * size) for c in task.clients]


def test_early_layers_by_squared_weight_later_ones_by_importance(make_task, play):
    method = replace(METHOD, alpha=0.0, min_swaps=0)
    task = make_task(method)
    played = play(method, task, rounds=1, per_round=3)
    before, after = played.servers
    seen = {u.client.id for u in played.rounds[0]}
    assert after[KNOWN].tolist() == [float(c.id in seen) for c in task.clients]
    for client in task.clients:
        own = importances(method, task, client)
        for layer in LAYERS:
            weight = before[f"{MODEL}{layer}.weight"].flatten(1).square().sum(1)
            by_importance = layer in ("fc1", "fc2") and client.id in seen
            score = own[layer].square() if by_importance else weight
            got = kept(after, layer, client)
            dropped = sorted(set(range(len(score))) - set(got))
            assert not dropped or score[got].min() >= score[dropped].max()
        last = own["fc2"] if client.id in seen else torch.zeros(128)
        assert torch.equal(after[LAST][client.id], last.to(after[LAST].dtype))
    again = play(method, task, rounds=3, per_round=4).servers
    assert all(torch.equal(again[1][k], v) for k, v in again[3].items() if k.startswith(MASK)), "kept without swaps"


@pytest.mark.parametrize("divide", ["root", "inputs", "all"])
def test_slices_are_sent_divided_and_return_to_their_place(make_task, play, divide):
    method = replace(METHOD, divide=divide)
    task = make_task(method)
    server = play(method, task, rounds=2, per_round=4).servers[-1]
    server |= {k: torch.arange(v.numel(), dtype=v.dtype).view_as(v) for k, v in server.items() if k.startswith(MODEL)}
    downs = method.download(task, server, task.clients, 3)
    for client, down in zip(task.clients, downs, strict=True):
        factors = method.factors(task, client.width)
        held = {layer: kept(server, layer, client) for layer in LAYERS}
        columns = [4 * c + pixel for c in held["conv2"] for pixel in range(4)]
        expected = {
            "conv1.weight": server[MODEL + "conv1.weight"][held["conv1"]],
            "conv2.weight": server[MODEL + "conv2.weight"][held["conv2"]][:, held["conv1"]],
            "fc1.weight": server[MODEL + "fc1.weight"][held["fc1"]][:, columns],
            "fc2.bias": server[MODEL + "fc2.bias"][held["fc2"]],
            "head.weight": server[MODEL + "head.weight"][:, held["fc2"]],
            "head.bias": server[MODEL + "head.bias"],
        }
        for k, v in expected.items():
            assert torch.equal(down[k], v * factors.get(k, 1.0)), k
    before = wire(server)
    private = [method.init_client(task, c) for c in task.clients]
    updates = [
        Update(c, d | {IMPORTANCE + k: v for k, v in p.items()}, c.n, p, 0.0, 0)
        for c, d, p in zip(task.clients, downs, private, strict=True)
    ]
    after = method.aggregate(task, server, updates, 3)
    for k in take(MODEL, before):
        torch.testing.assert_close(after[MODEL + k], before[MODEL + k], rtol=1e-13, atol=0)


def test_entries_average_by_n_over_p_and_untrained_ones_stay(make_task, play):
    method = replace(METHOD, divide="all")
    task = make_task(method, setting="list:1/4,1/16,1/16,1/256")
    played = play(method, task, rounds=2, per_round=3)
    untouched = 0
    for before, updates, after in zip(played.servers, played.rounds, played.servers[1:], strict=False):
        places = [places_of(task, before, u.client) for u in updates]
        for k in take(MODEL, before):
            total, held = torch.zeros_like(before[MODEL + k]), torch.zeros_like(before[MODEL + k])
            for u, place in zip(updates, places, strict=True):
                total[place[k]] += u.tree[k] * u.n  # times p on return, divided by p in the weight
                held[place[k]] += u.n / float(u.client.width)
            nobody = held == 0
            assert torch.equal(after[MODEL + k][nobody], before[MODEL + k][nobody])
            torch.testing.assert_close(after[MODEL + k][~nobody], (total / held)[~nobody], rtol=0, atol=1e-12)
            untouched += int(nobody.sum())
    assert untouched > 0


def test_the_tested_model_is_the_current_slice_untrained(make_task, play):
    task = make_task(METHOD)
    played = play(METHOD, task, rounds=2, per_round=4)
    client = task.clients[1]
    [down] = METHOD.download(task, played.servers[-1], [client], 2)
    start, fixed = METHOD.begin(task, client, down, played.private[client.id])
    [candidate] = METHOD.personal(task, client.width, start, start, fixed).values()
    assert all(torch.equal(v, down[k]) for k, v in candidate.items())
    scores = Sequential().evaluate(Round(METHOD, task, played.servers[-1], {}, task.clients, 2), ["received"])
    assert len(scores) == 4


def test_float32_resnet_takes_a_step_at_both_ends(make_task):
    method = TailorFL(importance_steps=1)
    task = make_task(method, model="resnet18-gn", precision="fp32", setting="list:1,1/256,1/256,1/256")
    task = replace(task, local=replace(task.local, batch=64))
    server = on_task(task, method.init_server(task))
    for client in task.clients[:2]:
        [down] = method.download(task, server, [client], 1)
        assert {k: tuple(v.shape) for k, v in down.items()} == task.model.shapes(client.width)
        start, fixed = method.begin(task, client, down, method.init_client(task, client))
        trained, loss = train(method, task, client, start, fixed, 1, "train")
        assert loss > 0
        assert all(v.isfinite().all() and v.dtype == torch.float32 for v in trained.values())
        update = Update(client, method.finish(task, client.width, trained, fixed)[0], client.n, {}, loss, 0)
        server = method.aggregate(task, server, [update], 1)
    assert (task.clients[0].width, task.clients[1].width) == (1, Fraction(1, 16))
