from dataclasses import replace
from fractions import Fraction

import torch

from conftest import takes_steps_in_float32
from pa3dfl.methods.base import Update
from pa3dfl.methods.fedavg import FedAvg
from pa3dfl.methods.fedrolex import FedRolex, places_of

METHOD = FedRolex()


def numbered(task):
    """A full model in which every entry holds its position."""
    full = METHOD.init_server(task)
    return {k: torch.arange(v.numel(), dtype=torch.float64).view_as(v) for k, v in full.items()}


def test_equal_full_widths_give_fedavg(make_task, play):
    ours = play(METHOD, make_task(METHOD, setting="ideal"), rounds=2).servers[-1]
    theirs = play(FedAvg(), make_task(FedAvg(), setting="ideal"), rounds=2).servers[-1]
    for k, v in theirs.items():
        torch.testing.assert_close(ours[k], v, rtol=0, atol=1e-9)


def test_a_full_width_client_holds_the_model_as_it_is_in_every_round(make_task):
    task = make_task(METHOD)
    server = numbered(task)
    for rnd in (1, 2, 50, 1000):
        [down] = METHOD.download(task, server, [task.clients[0]], rnd)
        assert all(torch.equal(v, server[k]) for k, v in down.items())


def test_inputs_follow_the_outputs_that_feed_them(make_task):
    """Width 1/4 in round 60: conv1 (32 channels) has rolled by 59 mod 32 = 27, conv2 (64) by 59."""
    task = make_task(METHOD)
    [client] = [c for c in task.clients if c.width == Fraction(1, 4)]
    server = numbered(task)
    [down] = METHOD.download(task, server, [client], 60)
    conv1 = [0, 1, 2, 27, 28, 29, 30, 31]
    conv2 = [*range(11), *range(59, 64)]
    fc1 = sorted((59 + i) % 512 for i in range(128))
    assert down["conv1.bias"].tolist() == conv1
    assert down["conv2.bias"].tolist() == conv2
    columns = [4 * c + pixel for c in conv2 for pixel in range(4)]
    assert torch.equal(down["conv2.weight"], server["conv2.weight"][conv2][:, conv1])
    assert torch.equal(down["fc1.weight"], server["fc1.weight"][fc1][:, columns])
    assert torch.equal(down["head.bias"], server["head.bias"])


def test_every_channel_is_trained_equally_often_in_a_full_cycle(make_task):
    task = make_task(METHOD)
    client = task.clients[1]
    server = numbered(task)
    names = ("conv1.weight", "conv1.bias", "conv2.bias", "fc1.bias", "fc2.bias", "head.weight")
    seen = {k: torch.zeros_like(server[k]) for k in names}
    for rnd in range(1, 513):  # the widest layer has 512 channels, the others a divisor of it
        places = places_of(task, server, [client], rnd)[client.width]
        for k, counts in seen.items():
            counts[places[k]] += 1
    assert client.width == Fraction(1, 2)
    assert {k: counts.unique().tolist() for k, counts in seen.items()} == {k: [256] for k in names}


def test_clients_count_by_their_data(make_task):
    task = make_task(METHOD, setting="ideal")
    server = {k: v.double() for k, v in METHOD.init_server(task).items()}
    updates = [
        Update(task.clients[i], {k: torch.full_like(v, 3.0 * i) for k, v in server.items()}, n, {}, 0.0, 0)
        for i, n in ((0, 20), (1, 10))
    ]
    merged = METHOD.aggregate(task, server, updates, 1)
    assert all(torch.allclose(v, torch.ones_like(v)) for v in merged.values())


def test_entries_that_nobody_trained_keep_their_value(make_task, play):
    task = make_task(METHOD, setting="list:1/4,1/16,1/16,1/256")
    played = play(METHOD, task, rounds=2, per_round=4)
    for rnd, (before, updates, after) in enumerate(
        zip(played.servers, played.rounds, played.servers[1:], strict=False), 1
    ):
        places = places_of(task, before, [u.client for u in updates], rnd)
        for k, old in before.items():
            total, held = torch.zeros_like(old), torch.zeros_like(old)
            for u in updates:
                full = torch.zeros_like(old)
                full[places[u.client.width][k]] = u.tree[k]
                total += full
                mask = torch.zeros_like(old)
                mask[places[u.client.width][k]] = 1
                held += mask
            assert torch.equal(after[k][held == 0], old[held == 0])
            torch.testing.assert_close(after[k][held > 0], (total / held)[held > 0], rtol=0, atol=1e-12)
    # Channels 0 to 15 of conv1 are somebody's in round 1, channels 1 to 16 in round 2.
    one, two = (after["conv1.bias"] != before["conv1.bias"]
                for before, after in zip(played.servers, played.servers[1:], strict=False))  # fmt: skip
    assert one.nonzero().flatten().tolist() == list(range(16))
    assert two.nonzero().flatten().tolist() == list(range(1, 17))


def test_an_unchanged_slice_returns_to_its_place(make_task):
    task = make_task(METHOD)
    server = numbered(task)
    clients = task.clients[1:]
    downs = METHOD.download(task, server, clients, 40)
    updates = [Update(c, d, c.n, {}, 0.0, 0) for c, d in zip(clients, downs, strict=True)]
    merged = METHOD.aggregate(task, server, updates, 40)
    for k, v in numbered(task).items():
        torch.testing.assert_close(merged[k], v, rtol=1e-14, atol=0)


def test_float32_resnet_takes_a_step_at_both_ends(make_task):
    task = make_task(METHOD, model="resnet18-gn", precision="fp32")
    task = replace(task, local=replace(task.local, batch=64))
    takes_steps_in_float32(METHOD, task, 63)
    assert (task.clients[0].width, task.clients[3].width) == (1, Fraction(1, 16))
