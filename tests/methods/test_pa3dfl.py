"""Pa3dFL: the paper's equations, checked against plain ones written out here."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conftest import make_arrays
from pa3dfl.core.tree import put, take, wire
from pa3dfl.engines import Round, local
from pa3dfl.engines.cost import cost
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods.assembly import make_model
from pa3dfl.methods.base import Update
from pa3dfl.methods.pa3dfl.general import local_weight
from pa3dfl.methods.pa3dfl.method import HN, PLAIN, Pa3dFL, U, V, global_head, hypernetwork
from pa3dfl.methods.problem import Task

Make = Callable[..., Any]


def server_of(method: Pa3dFL, task: Task) -> dict[str, torch.Tensor]:
    return {k: v.to(task.dtype) for k, v in method.init_server(task).items()}


def test_widths_are_whole_blocks() -> None:
    """With p_min = 1/8, dropping blocks of θ_v gives multiples of 1/8 only."""
    afford = [Fraction(1, 8), Fraction(3, 16), Fraction(15, 16), Fraction(1)]
    assert Pa3dFL().widths(afford, Fraction(1, 8)) == [Fraction(1, 8), Fraction(1, 8), Fraction(7, 8), Fraction(1)]


def test_global_head_is_frozen_random_and_the_same_for_all(make_task: Make) -> None:
    method = Pa3dFL()
    task = make_task(method)
    head = global_head(method, task)
    assert head["weight"].shape == (4, 128)
    # Rows uniform in ±√3·ln(classes)/√features have length ln(classes) on average.
    assert float(head["weight"].norm(dim=1).mean()) == pytest.approx(math.log(4), rel=0.05)
    assert not head["bias"].any()
    assert torch.equal(head["weight"], global_head(method, make_task(method))["weight"])
    for client, down in zip(task.clients, method.download(task, server_of(method, task), task.clients, 1), strict=True):
        theta, fixed = method.begin(task, client, down, {})
        assert torch.equal(fixed["weight"], head["weight"])
        assert not any(torch.equal(v, head["weight"]) for v in theta.values() if v.shape == head["weight"].shape)


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_loss_by_the_definition(weight: float, make_task: Make) -> None:
    method = Pa3dFL(lam=0.03, local_weight=weight)
    task = make_task(method)
    client = task.clients[1]
    [down] = method.download(task, server_of(method, task), [client], 1)
    theta, fixed = method.begin(task, client, down, {})
    x, y = task.data.batch(task.data.rows(1, "train")[:10], None, task.dtype)
    plain = method.weights(task, client.width, theta, fixed)
    h = F.relu(F.max_pool2d(F.conv2d(x, plain["conv1.weight"], plain["conv1.bias"], padding=2), 2))
    h = F.relu(F.max_pool2d(F.conv2d(h, plain["conv2.weight"], plain["conv2.bias"], padding=2), 2))
    h = F.relu(F.linear(h.flatten(1), plain["fc1.weight"], plain["fc1.bias"]))
    h = F.relu(F.linear(h, plain["fc2.weight"], plain["fc2.bias"]))
    overlap = 0.0
    for layer in ("conv1", "conv2"):
        gram = theta[U + layer].T @ theta[U + layer]
        overlap += float((gram - gram.diag().diag()).square().sum())
    expected = (
        F.cross_entropy(h @ fixed["weight"].T, y)
        + (weight or 1.0) * F.cross_entropy(h @ theta[V + "head.weight"].T + theta[V + "head.bias"], y)
        + 0.03 * overlap
    )
    assert float(method.loss(task, client.width, theta, fixed, (x, y), {})) == pytest.approx(float(expected), rel=1e-9)


def test_the_local_head_steps_less_on_many_features() -> None:
    assert [local_weight(0.0, features) for features in (128, 192, 512)] == [1, 1, 0.375]
    assert local_weight(0.5, 512) == 0.5


def test_the_local_head_does_not_shape_the_features(make_task: Make) -> None:
    """L_c is on detached features: without L_g and the overlap, only the local head has a gradient."""
    method = Pa3dFL(lam=0.0)
    task = make_task(method)
    client = task.clients[0]
    [down] = method.download(task, server_of(method, task), [client], 1)
    theta = {k: v.clone().requires_grad_() for k, v in down.items()}
    silent = {k: torch.zeros_like(v) for k, v in global_head(method, task).items()}
    batch = task.data.batch(task.data.rows(0, "train")[:10], None, task.dtype)
    loss = method.loss(task, client.width, theta, silent, batch, {})
    gradients = dict(zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True))
    assert {k for k, g in gradients.items() if g.any()} == {V + "head.weight", V + "head.bias"}


def test_one_local_step_gives_the_hypernetwork_the_true_gradient(make_task: Make) -> None:
    """Appendix "Convergence": ∂L_HN/∂φ = η·∂F/∂φ when each client makes one full-batch step."""
    method = Pa3dFL(lam=1e-3, embedding=4, hidden=6, depth=2)
    rows = 40 * 8 // 10
    task = make_task(method, batch=rows, epochs=1, lr=0.05, clip_norm=0, weight_decay=0)
    assert [c.n for c in task.clients] == [rows] * 4
    server = server_of(method, task)
    hn, phi, ids = hypernetwork(method, task), take(HN, server), [c.id for c in task.clients]
    updates = Sequential().train(Round(method, task, server, {}, task.clients, 1))
    found = hn.gradient(phi, ids, [take(V, u.tree) for u in updates])

    params = {k: v.clone().requires_grad_() for k, v in phi.items()}
    objective = torch.zeros((), dtype=task.dtype)
    mixes = hn.mixes(params, ids)
    for at, client in enumerate(task.clients):
        [down] = method.download(task, server, [client], 1)
        theta = dict(down)
        for mix, (name, out) in zip(mixes, hn.outputs.items(), strict=True):
            full = F.linear(mix[at], params[f"decoder.{name}.weight"], params[f"decoder.{name}.bias"])
            theta[V + name] = full.view(out.shape)[tuple(slice(n) for n in down[V + name].shape)]
        batch = task.data.batch(task.data.rows(client.id, "train"), None, task.dtype)
        objective = objective + method.loss(task, client.width, theta, global_head(method, task), batch, {}) / 4
    exact = dict(zip(params, torch.autograd.grad(objective, list(params.values())), strict=True))
    for k, g in exact.items():
        torch.testing.assert_close(found[k], 0.05 * g, rtol=1e-5, atol=1e-10)
    assert all(float(g.norm()) > 1e-9 for g in exact.values()), "a gradient of zero would prove nothing"


def test_general_parameters_are_averaged_without_weights(make_task: Make) -> None:
    method = Pa3dFL()
    task = make_task(method)
    server = server_of(method, task)
    downs = method.download(task, server, task.clients, 1)
    old = {k: v.clone() for k, v in server.items()}
    updates = [
        Update(replace(c, n=10**i), {k: v + i for k, v in wire(d).items()}, 10**i, {}, 0.0, 0)
        for i, (c, d) in enumerate(zip(task.clients, downs, strict=True))
    ]
    new = method.aggregate(task, server, updates, 1)
    for k in take(U, old):
        torch.testing.assert_close(new[U + k], old[U + k] + 1.5)
    # Widths 1, 1/2, 1/4, 1/16 of 32 channels: an entry's mean is over the clients that hold it.
    bias = new[PLAIN + "conv1.bias"] - old[PLAIN + "conv1.bias"]
    expected = torch.cat([torch.full((n,), v) for n, v in ((2, 1.5), (6, 1.0), (8, 0.5), (16, 0.0))])
    torch.testing.assert_close(bias, expected.double())
    # The last encoder layer keeps its output at every width: all hold all of it.
    torch.testing.assert_close(new[PLAIN + "fc2.bias"], old[PLAIN + "fc2.bias"] + 1.5)


def test_tested_models_lie_between_received_and_trained(make_task: Make) -> None:
    method = Pa3dFL()
    task = make_task(method)
    client = task.clients[2]
    [down] = method.download(task, server_of(method, task), [client], 1)
    start, fixed = method.begin(task, client, wire(down), {})
    trained, _ = local.train(method, task, client, start, fixed, 1, "test")
    candidates = method.personal(task, client.width, start, trained, fixed)
    assert list(candidates) == [i / 10 for i in range(11)]
    m0 = method.weights(task, client.width, start, fixed) | put("head.", fixed)
    m1 = method.weights(task, client.width, trained, fixed) | put("head.", take(V + "head.", trained))
    for alpha, candidate in candidates.items():
        assert {k: v.shape for k, v in candidate.items()} == dict(task.model.shapes(client.width).items())
        for k, v in candidate.items():
            torch.testing.assert_close(v, m0[k] + alpha * (m1[k] - m0[k]))


def test_the_coarsest_search_tries_both_ends(make_task: Make) -> None:
    method = Pa3dFL(line_search=2)
    task = make_task(method)
    [down] = method.download(task, server_of(method, task), task.clients[:1], 1)
    start, fixed = method.begin(task, task.clients[0], down, {})
    assert list(method.personal(task, Fraction(1), start, start, fixed)) == [0.0, 1.0]


def test_features_start_small(make_task: Make) -> None:
    """By the last layer's start, or by the norms after it where there are some; all else follows He's rule."""
    method = Pa3dFL()
    plain, normed = make_task(method), make_task(method, make_arrays(shape=(3, 32, 32)), model="resnet18-gn")
    assert hypernetwork(method, plain).outputs["fc2"].std == pytest.approx(math.sqrt(2 / 512) / math.log(4))
    assert hypernetwork(method, plain).outputs["fc1"].std == pytest.approx(math.sqrt(2 / 64 / 4))
    assert hypernetwork(method, normed).outputs["blocks.7.shortcut.0"].std == pytest.approx(math.sqrt(2 / 512))
    server = Pa3dFL(hidden=1, embedding=1).init_server(normed)
    starts = {k: float(v[0]) for k, v in server.items() if k.startswith(PLAIN) and k.endswith(".weight")}
    small = {k for k, v in starts.items() if v == pytest.approx(1 / math.log(4))}
    assert small == {PLAIN + "blocks.7.norm2.weight", PLAIN + "blocks.7.shortcut.1.weight"}
    assert {starts[k] for k in starts.keys() - small} == {1.0}
    given = Pa3dFL(last_gain=0.5)
    assert hypernetwork(given, plain).outputs["fc2"].std == pytest.approx(math.sqrt(2 / 512) / 2)


@pytest.mark.parametrize("width", [Fraction(1, 16), Fraction(1, 2)])
def test_the_order_of_contraction_changes_nothing(width: Fraction, make_task: Make) -> None:
    """Loss and gradients of a whole step, on a network with strides, shortcuts and maps of one pixel."""
    orders = {order: Pa3dFL(order=order, hidden=1, embedding=1) for order in ("recover", "factors", "auto")}
    task = make_task(orders["auto"], make_arrays(shape=(3, 32, 32)), model="resnet18-gn")
    client = replace(task.clients[0], width=width)
    [down] = orders["auto"].download(task, server_of(orders["auto"], task), [client], 1)
    theta, fixed = orders["auto"].begin(task, client, wire(down), {})
    theta = {k: v.requires_grad_() for k, v in theta.items()}
    batch = task.data.batch(task.data.rows(0, "train")[:4], None, task.dtype)
    found = {}
    for order, method in orders.items():
        loss = method.loss(task, width, theta, fixed, batch, {})
        found[order] = [loss.detach(), *torch.autograd.grad(loss, list(theta.values()))]
    for order in ("factors", "auto"):
        for a, b in zip(found[order], found["recover"], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_resnet_trains_with_less_than_half_of_the_multiply_adds() -> None:
    model = make_model("resnet18-gn", Pa3dFL(), (3, 32, 32), 10, Fraction(1, 16))
    [record] = cost(Pa3dFL(), model, Fraction(1, 16), 50, [Fraction(1)])
    assert record["recover_multiply_adds"] == record["encoder_multiply_adds"]
    assert record["chosen_multiply_adds"] <= 0.45 * record["recover_multiply_adds"]
    assert record["chosen_multiply_adds"] < record["factors_multiply_adds"]
    # What training really does, with its two heads and the orthogonality term.
    assert record["chosen_multiply_adds"] < record["step_multiply_adds"] < 0.47 * record["recover_multiply_adds"]


@pytest.mark.parametrize(("keep", "own"), [("none", ()), ("head", (V + "head.",)), ("personal", (V,)), ("all", ("",))])
def test_kept_parameters_replace_the_trained_ones_in_a_test_without_training(
    keep: str, own: tuple[str, ...], make_task: Make
) -> None:
    """At α = 1 the kept parameters replace those of the received model; nothing else depends on them."""
    method = Pa3dFL(keep=keep)
    task = make_task(method)
    client, server = task.clients[1], server_of(method, task)
    [old] = method.download(task, server, [client], 1)
    update, _ = Sequential().train_one(method, task, client, wire(old), None, 1)
    reference, _ = Sequential().train_one(Pa3dFL(), task, client, wire(old), None, 1)
    assert all(torch.equal(update.tree[k], v) for k, v in reference.tree.items())
    assert update.private.keys() == {k for k in update.tree if k.startswith(own)}
    new = {k: v + 0.01 for k, v in old.items()}
    theta, fixed = method.begin(task, client, new, update.private)
    assert all(torch.equal(theta[k], v) for k, v in new.items())
    mixed = {k: update.tree[k] if k.startswith(own) else v for k, v in new.items()}
    expected = method.personal(task, client.width, theta, mixed, fixed)
    [(score, model)] = Sequential().test_one(method, task, client, wire(new), update.private, 2, ["received"], "loss")
    assert all(torch.equal(model[k], v) for k, v in expected[score.alpha].items())
    assert score == local.score(method, task, client, "received", expected, "loss")
    # Before its first round a client has only what it receives.
    assert method.untrained(task, theta, {}) == theta
    adapted = [
        Sequential().test_one(m, task, client, wire(new), update.private, 2, ["adapted"], "loss")[0][0]
        for m in (method, Pa3dFL())
    ]
    assert adapted[0] == adapted[1]
