"""TailorFL: what is kept, how it is scaled and averaged, and how overlaps move."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from masks import LAYERS, METHOD, kept

from conftest import make_arrays, on_task
from pa3dfl.core.randomness import key
from pa3dfl.core.tree import take, wire
from pa3dfl.data import Arrays
from pa3dfl.engines import Round
from pa3dfl.engines.local import train
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods.base import Update
from pa3dfl.methods.fedavg import FedAvg
from pa3dfl.methods.tailorfl.importance import correlation, learned, swapped, top
from pa3dfl.methods.tailorfl.method import (
    IMPORTANCE,
    KNOWN,
    LAST,
    MASK,
    MODEL,
    TailorFL,
    batches,
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


def test_importances_descend_the_loss_of_the_frozen_full_model(make_task):
    """Against a plain loop that multiplies the layers' outputs; most importances end inside [0, 1]."""
    method = TailorFL(importance_steps=4, lam=20.0)
    task = make_task(method, lr=1.0)
    client = task.clients[2]
    own = importances(method, task, client)
    w = on_task(task, task.model.init(Fraction(1), key(task.seed, "model")))
    theta = [torch.ones(n, dtype=torch.float64, requires_grad=True) for n in (32, 64, 512, 128)]
    steps = batches(method, task, client)
    assert [len(y) for _, y in steps] == [10] * 4
    for x, y in steps:
        x = F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=2) * theta[0][:, None, None]
        x = F.conv2d(F.relu(F.max_pool2d(x, 2)), w["conv2.weight"], w["conv2.bias"], padding=2)
        x = F.relu(F.max_pool2d(x, 2)) * theta[1][:, None, None]
        x = F.relu(F.linear(x.flatten(1), w["fc1.weight"], w["fc1.bias"])) * theta[2]
        x = F.relu(F.linear(x, w["fc2.weight"], w["fc2.bias"])) * theta[3]
        loss = F.cross_entropy(F.linear(x, w["head.weight"], w["head.bias"]), y)
        loss = loss + 20.0 * sum(t.square().sum() for t in theta) / 736
        with torch.no_grad():
            for t, g in zip(theta, torch.autograd.grad(loss, theta), strict=True):
                t.copy_((t - 1.0 * g).clamp(0, 1))
    for layer, t in zip(LAYERS, theta, strict=True):
        torch.testing.assert_close(own[layer], t.detach(), rtol=0, atol=1e-10)
        assert ((own[layer] > 0) & (own[layer] < 1)).double().mean() > 0.5


def test_a_dead_channel_is_less_important_than_one_in_use(make_task):
    """λ alone moves it: from 1 by 1 − 2·λ·rate/numel a step, and never below 0."""
    task = make_task(METHOD)
    params = on_task(task, METHOD.init_server(task))
    params = take(MODEL, params)
    params["head.weight"][:, 5] = 0  # nothing comes of fc2's channel 5
    own = learned(task.model, params, batches(METHOD, task, task.clients[0]), 1.0, 0.5)
    assert own["fc2"][5] == pytest.approx((1 - 2 * 0.5 / 736) ** 3, abs=1e-12)
    extreme = learned(task.model, params, batches(METHOD, task, task.clients[0]), 1e6, 0.5)
    assert all((v == 0).all() for v in extreme.values())


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


def overlaps(masks):
    return masks @ masks.T


def test_swaps_raise_the_overlap_of_like_clients_and_lower_that_of_unlike_ones():
    g = torch.Generator().manual_seed(0)
    masks = torch.stack([top(torch.rand(40, generator=g), k) for k in (20, 20, 10, 10, 40)]).double()
    sign = torch.tensor([1.0, 1, -1, -1, 1]).double()
    related = sign[:, None] * sign
    known, like = torch.ones(5).double(), (related > 0) & ~torch.eye(5, dtype=torch.bool)
    start = end = masks
    for _ in range(10):
        end = swapped(end, related, known, [2, 2, 1, 1, 0])
        assert torch.equal(end.sum(1), masks.sum(1))
    assert overlaps(end)[0, 1] == 20
    assert overlaps(end)[2, 3] == 10
    assert overlaps(end)[like].sum() > overlaps(start)[like].sum()
    assert overlaps(end)[:2, 2:4].sum() < overlaps(start)[:2, 2:4].sum()
    assert torch.equal(end[4], masks[4])


def test_one_swap_by_hand():
    """Client 0 holds {0, 1}, client 1 {1, 2}, client 2 {3, 4}; 0 and 1 are alike, 2 is the opposite of both."""
    masks = torch.tensor([[1.0, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1]])
    related = torch.tensor([[1.0, 1, -1], [1, 1, -1], [-1, -1, 1]])
    # For client 0, channels 1 and 2 weigh 2 − 1 = 1, channels 3 and 4 −2, channel 0 nothing: 0 goes and 2 comes.
    # Client 1 then has what it should; for client 2, channels 1 and 2 weigh −4, its own nothing: both stay.
    one = swapped(masks, related, torch.ones(3), [1, 1, 1])
    assert one.tolist() == [[0, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1]]
    assert torch.equal(swapped(masks, related, torch.tensor([1.0, 0, 0]), [1, 1, 1]), masks), "nobody to compare with"
    assert torch.equal(swapped(masks, related, torch.ones(3), [0, 0, 0]), masks)


def test_the_number_of_swaps_is_limited_and_only_later_layers_move(make_task, play):
    method = replace(METHOD, alpha=0.1, min_swaps=0)
    task = make_task(method)
    servers = play(method, task, rounds=4, per_round=4).servers
    moved = 0
    for before, after in pairwise(servers[1:]):  # everybody is known after round 1
        for layer, size in channels(task.model).sizes.items():
            changes = (after[MASK + layer] != before[MASK + layer]).sum(1) // 2
            for client, n in zip(task.clients, changes.tolist(), strict=True):
                k = int(client.width * size)
                assert n <= (0.1 * min(k, size - k) if layer in ("fc1", "fc2") else 0)
                moved += n
    assert moved > 0


def test_correlation_is_the_cosine_of_centred_vectors():
    v = torch.rand(3, 50, generator=torch.Generator().manual_seed(1)).double()
    assert np.allclose(correlation(v), np.corrcoef(v.numpy()), atol=1e-12)
    assert correlation(torch.ones(2, 5)).tolist() == [[0, 0], [0, 0]], "no preference, no correlation"
    assert torch.allclose(correlation(3 * v + 7), correlation(v))


def test_clients_with_the_same_classes_correlate_more(make_task):
    arrays = make_arrays(240)
    natural = Arrays(arrays.x, arrays.y, arrays.classes, client=(arrays.y >= 2) * 2 + np.arange(240) // 4 % 2)
    method = TailorFL()
    task = make_task(method, natural, partition="natural", setting="ideal")
    last = torch.stack([importances(method, task, c)["fc2"] for c in task.clients])
    c = correlation(last)
    assert min(c[0, 1], c[2, 3]) > max(c[0, 2], c[0, 3], c[1, 2], c[1, 3])


def test_importances_come_from_the_clients_own_data_and_are_measured_once(make_task, play):
    task = make_task(METHOD)
    a, b = (importances(METHOD, task, c)["fc2"] for c in task.clients[:2])
    assert not torch.equal(a, b)
    played = play(METHOD, task, rounds=3, per_round=3)
    for update in (u for updates in played.rounds for u in updates):
        own = importances(METHOD, task, update.client)
        assert all(torch.equal(update.private[k], v) for k, v in own.items())
        assert all(torch.equal(update.tree[IMPORTANCE + k], v) for k, v in own.items())


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
