"""TailorFL: what is divided, how many swaps there are at least, and when early layers are chosen."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from masks import LAYERS, METHOD, kept

from conftest import on_task
from pa3dfl.core.tree import wire
from pa3dfl.methods.base import Update
from pa3dfl.methods.tailorfl import method as tailorfl
from pa3dfl.methods.tailorfl.method import IMPORTANCE, MODEL

PRUNED_INPUTS = {"conv2.weight", "fc1.weight", "fc2.weight", "head.weight"}


@pytest.mark.parametrize(
    ("divide", "divisor", "divided"),
    [("root", 0.25**0.5, PRUNED_INPUTS), ("inputs", 0.25, PRUNED_INPUTS),
     ("all", 0.25, {f"{n}.{kind}" for n in (*LAYERS, "head") for kind in ("weight", "bias")})],
)  # fmt: skip
def test_what_is_divided_in_a_quarter_wide_submodel(make_task, divide, divisor, divided):
    """conv1 has all of its inputs at every width; a bias is no sum over inputs."""
    method = replace(METHOD, divide=divide)
    task = make_task(method)
    server = {k: torch.ones_like(v) if k.startswith(MODEL) else v for k, v in method.init_server(task).items()}
    client = task.clients[2]
    assert client.width == Fraction(1, 4)
    [down] = method.download(task, server, [client], 1)
    found = {k: v.unique().tolist() for k, v in down.items()}
    assert found == {k: [pytest.approx(1 / divisor if k in divided else 1.0)] for k in down}


def test_dividing_by_the_root_keeps_first_losses_similar(make_task):
    """Divided by p, every layer enlarges its inputs by √(1/p): at 1/16 the first loss is in the hundreds."""
    losses = {}
    for divide in ("root", "inputs", "all"):
        method = replace(METHOD, divide=divide)
        task = make_task(method)
        server = on_task(task, method.init_server(task))
        for client in (task.clients[0], task.clients[3]):
            [down] = method.download(task, server, [client], 1)
            batch = task.data.batch(task.data.rows(client.id, "train"), None, task.dtype)
            losses[divide, str(client.width)] = method.loss(task, client.width, down, {}, batch, {}).item()
    assert losses["root", "1"] == losses["inputs", "1"] == losses["all", "1"] < 5
    assert losses["root", "1/16"] < 5
    assert losses["inputs", "1/16"] > 50
    assert losses["all", "1/16"] > 500


@pytest.mark.parametrize(("min_swaps", "most"), [(0, [0, 0, 0, 0]), (1, [0, 1, 1, 1]), (3, [0, 3, 3, 3])])
def test_alpha_too_small_for_a_swap(make_task, monkeypatch, min_swaps, most):
    """Of 128 channels clients keep 128, 64, 32 and 8; α·min(kept, dropped) is 0.64 at most."""
    seen = []
    monkeypatch.setattr(tailorfl, "swapped", lambda masks, *rest: (seen.append(rest[-1]), masks)[1])
    method = replace(METHOD, alpha=0.01, min_swaps=min_swaps)
    task = make_task(method, setting="list:1,1/4,1/16,1/256")
    server = on_task(task, method.init_server(task))
    monkeypatch.setattr(tailorfl, "personal_groups", lambda task: ["fc2"])
    method.aggregate(task, server, [full_update(method, task, server)], 1)
    assert seen == [most]


@pytest.mark.parametrize("rerank", [False, True])
def test_early_layers_by_the_current_weights_or_those_of_the_start(make_task, rerank):
    method = replace(METHOD, rerank=rerank, min_swaps=0, alpha=0.0)
    task = make_task(method)
    server = on_task(task, method.init_server(task))
    start = [kept(server, "conv1", c) for c in task.clients]
    lightest = server[MODEL + "conv1.weight"].flatten(1).square().sum(1).argmin().item()
    update = full_update(method, task, server)
    update.tree["conv1.weight"][lightest] += 10
    after = method.aggregate(task, server, [update], 1)
    for client, before in zip(task.clients, start, strict=True):
        now = kept(after, "conv1", client)
        assert len(now) == len(before)
        assert (now == before) == (not rerank or client.width == 1)
        assert (lightest in now) == (rerank or client.width == 1)


def full_update(method, task, server):
    """The upload of the widest client if it changes nothing."""
    client = task.clients[0]
    assert client.width == 1
    [down] = method.download(task, wire(server), [client], 1)
    private = method.init_client(task, client)
    return Update(client, wire(down) | {IMPORTANCE + k: v for k, v in private.items()}, client.n, private, 0.0, 0)
