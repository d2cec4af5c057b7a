from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

from conftest import takes_steps_in_float32
from pa3dfl.core.tree import leading
from pa3dfl.methods.base import Update
from pa3dfl.methods.fedavg import FedAvg
from pa3dfl.methods.fjord import STEPS, Fjord, narrower_widths

SIXTEENTH = Fraction(1, 16)


def start(method, task, client):
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    [down] = method.download(task, server, [client], 1)
    return {k: v.clone().requires_grad_() for k, v in down.items()}


def batch_of(task, client):
    return task.data.batch(task.data.rows(client.id, "train")[:10], None, task.dtype)


def test_without_distillation_equal_full_widths_give_fedavg(make_task, play):
    method = Fjord(distil=False)
    ours = play(method, make_task(method, setting="ideal"), rounds=2).servers[-1]
    theirs = play(FedAvg(), make_task(FedAvg(), setting="ideal"), rounds=2).servers[-1]
    for k, v in theirs.items():
        torch.testing.assert_close(ours[k], v, rtol=0, atol=1e-9)


def test_narrower_widths_are_whole_steps_strictly_below():
    assert [narrower_widths(Fraction(i, 16), SIXTEENTH) for i in range(1, 17)] == list(range(16))
    assert narrower_widths(Fraction(3, 16), Fraction(1, 8)) == 1
    assert narrower_widths(Fraction(1), Fraction(1)) == 0


def test_every_narrower_width_is_drawn_equally_often(make_task):
    task = make_task(Fjord())
    g = torch.Generator().manual_seed(0)
    drawn = Counter(int(Fjord().draw(task, Fraction(1, 4), g)[STEPS]) for _ in range(3000))
    assert set(drawn) == {1, 2, 3}
    assert all(900 < n < 1100 for n in drawn.values())
    assert Fjord().draw(task, SIXTEENTH, g) == {}
    assert Fjord(distil=False).draw(task, Fraction(1), g) == {}


@pytest.mark.parametrize("model", ["cnn-fashion", "resnet18-gn"])
def test_the_narrow_model_learns_from_the_wide_one_as_a_constant_teacher(make_task, model):
    method = Fjord()
    task = make_task(method, model=model)
    [client] = [c for c in task.clients if c.width == Fraction(1, 2)]
    theta, (x, y) = start(method, task, client), batch_of(task, client)
    narrow = Fraction(3, 16)
    loss = method.loss(task, client.width, theta, {}, (x, y), {STEPS: torch.tensor(3)})
    gradients = torch.autograd.grad(loss, list(theta.values()))

    wide = task.model(theta, x, client.width)
    part = {k: leading(theta[k], s) for k, s in task.model.shapes(narrow).items()}
    teacher = torch.exp(wide - wide.logsumexp(1, keepdim=True)).detach()
    soft = -(teacher * task.model(part, x, narrow).log_softmax(1)).sum(1).mean()
    want = F.cross_entropy(wide, y) + soft
    assert loss.item() == pytest.approx(want.item(), rel=1e-12)
    for got, expected in zip(gradients, torch.autograd.grad(want, list(theta.values())), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    # Outside the narrow model the gradient is that of the cross-entropy of the wide one alone.
    alone = F.cross_entropy(task.model(theta, x, client.width), y)
    [outside] = torch.autograd.grad(alone, [theta["conv1.weight"]])
    at = list(theta).index("conv1.weight")
    n = part["conv1.weight"].shape[0]
    torch.testing.assert_close(gradients[at][n:], outside[n:], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(gradients[at][:n], outside[:n], rtol=1e-3)


def test_the_smallest_width_trains_with_plain_cross_entropy(make_task):
    task = make_task(Fjord())
    client = task.clients[3]
    theta, (x, y) = start(Fjord(), task, client), batch_of(task, client)
    assert client.width == SIXTEENTH
    draws = Fjord().draw(task, client.width, torch.Generator())
    loss = Fjord().loss(task, client.width, theta, {}, (x, y), draws)
    assert torch.equal(loss, F.cross_entropy(task.model(theta, x, client.width), y))


def test_clients_count_by_their_data(make_task):
    task = make_task(Fjord(), setting="ideal")
    server = {k: v.double() for k, v in Fjord().init_server(task).items()}
    updates = [
        Update(task.clients[i], {k: torch.full_like(v, 3.0 * i) for k, v in server.items()}, n, {}, 0.0, 0)
        for i, n in ((0, 20), (1, 10))
    ]
    merged = Fjord().aggregate(task, server, updates, 1)
    assert all(torch.allclose(v, torch.ones_like(v)) for v in merged.values())


def test_entries_that_nobody_trained_keep_their_value(make_task, play):
    task = make_task(Fjord(), setting="list:1/4,1/16,1/16,1/256")
    played = play(Fjord(), task, rounds=2, per_round=4)
    first, last = played.servers[0], played.servers[-1]
    for k, shape in task.model.shapes(Fraction(1, 2)).items():
        inside = torch.zeros_like(first[k])
        leading(inside, shape).fill_(1)
        assert torch.equal(first[k][inside == 0], last[k][inside == 0]), k
    assert (first["fc1.weight"][:256, 0] != last["fc1.weight"][:256, 0]).all()
    # The outer half of the widest model belongs to one client alone.
    [widest] = [u for u in played.rounds[-1] if u.client.width == Fraction(1, 2)]
    torch.testing.assert_close(last["fc1.bias"][128:256], widest.tree["fc1.bias"][128:], rtol=1e-14, atol=0)


def test_float32_resnet_takes_a_step_at_every_narrower_width(make_task):
    method = Fjord()
    task = make_task(method, model="resnet18-gn", precision="fp32")
    task = replace(task, local=replace(task.local, batch=64))
    server = takes_steps_in_float32(method, task, 1)
    theta, batch = method.download(task, server, [task.clients[0]], 1)[0], batch_of(task, task.clients[0])
    for steps in range(1, 16):
        assert method.loss(task, Fraction(1), theta, {}, batch, {STEPS: torch.tensor(steps)}).isfinite()
