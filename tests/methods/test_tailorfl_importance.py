"""TailorFL: how important channels are to a client, and the swaps that make similar clients share channels."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from masks import LAYERS, METHOD

from conftest import make_arrays, on_task
from pa3dfl.core.randomness import key
from pa3dfl.core.tree import take
from pa3dfl.data import Arrays
from pa3dfl.methods.tailorfl.importance import correlation, learned, swapped, top
from pa3dfl.methods.tailorfl.method import IMPORTANCE, MASK, MODEL, TailorFL, batches, importances
from pa3dfl.models.channels import channels


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
