"""One suite over every method of the registry: a new file in `methods/` is tested by being there."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from conftest import learns, on_task
from pa3dfl import methods
from pa3dfl.core.options.capacity import width_of
from pa3dfl.core.tree import Tree, nbytes, wire
from pa3dfl.engines import Round
from pa3dfl.engines.cost import cost
from pa3dfl.engines.sequential import Sequential, private_of
from pa3dfl.methods import Method

Make = Callable[..., Any]
NAMES = list(methods.registry())


@pytest.fixture(params=NAMES)
def method(request: pytest.FixtureRequest) -> Method:
    return methods.find(request.param)()


def test_loss_falls(method: Method, make_task: Make) -> None:
    # pFedGate's fresh gates dim the signal of a sparse model so much that it needs hundreds of steps.
    setting = "ideal" if method.name == "pfedgate" else "list:1,1,1/4,1/4"
    task = make_task(method, epochs=3, lr=0.1, setting=setting)
    learns(method, task, rounds=8, share=0.95)


def test_widths_keep_within_capacity(method: Method, make_task: Make) -> None:
    """For every client p² ≤ r, or p is the minimum width."""
    task = make_task(method)
    if method.name == "pfedgate":  # masks a full-width model instead
        assert {c.width for c in task.clients} == {Fraction(1)}
        return
    for client in task.clients:
        assert task.p_min <= client.width <= width_of(client.r, task.p_min)


def test_shapes_follow_the_width(method: Method, make_task: Make) -> None:
    """The tested model is a plain model of the client's width, unless the method has its own `predict`."""
    task = make_task(method)
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    downs = method.download(task, server, task.clients, 1)
    for client, down in zip(task.clients, downs, strict=True):
        private = private_of(method, task, None, client)
        start, fixed = method.begin(task, client, wire(down), private)
        for candidate in method.personal(task, client.width, start, start, fixed).values():
            if type(method).predict is Method.predict:
                assert {k: tuple(v.shape) for k, v in candidate.items()} == task.model.shapes(client.width)
            x, _ = task.data.batch(task.data.rows(client.id, "test"), None, task.dtype)
            assert method.predict(task, client.width, candidate, x).shape == (len(x), task.data.classes)


def test_training_changes_neither_server_nor_private_state(method: Method, make_task: Make, play: Make) -> None:
    """An engine may be interrupted between any two clients: the state must still be that of the last round."""
    task = make_task(method)
    played = play(method, task, rounds=2)
    server, private = wire(played.servers[-1]), {i: wire(t) for i, t in played.private.items()}
    before = wire(server), {i: wire(t) for i, t in private.items()}
    Sequential().train(Round(method, task, server, private, task.clients, 3))
    Sequential().evaluate(Round(method, task, server, private, task.clients, 3), ["adapted"])
    assert same(server, before[0])
    assert all(same(private[i], before[1][i]) for i in private)


def test_private_state_never_leaves(method: Method, make_task: Make) -> None:
    """Two clients that differ in private state alone: what they download is the same."""
    task = make_task(method)
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    client = task.clients[1]
    before = method.download(task, wire(server), [client], 1)
    Sequential().train(Round(method, task, server, {}, [client], 1))
    after = method.download(task, wire(server), [client], 1)
    assert same(before[0], after[0])


def test_cost_counts_the_bytes_that_are_sent(method: Method, make_task: Make) -> None:
    task = make_task(method, precision="fp32")
    client = task.clients[-1]
    [record] = cost(method, task.model, task.p_min, 10, [client.width])
    [update] = Sequential().train(Round(method, task, method.init_server(task), {}, [client], 1))
    assert record["bytes_up"] == nbytes(update.tree)
    assert record["bytes_down"] == update.bytes_down
    assert record["encoder_multiply_adds"] > 0


def same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_the_server_is_extended_to_widths_that_come_later(method: Method, make_task: Make) -> None:
    """The result is as if all widths had been known from the start; known widths change nothing."""
    early, late = make_task(method, setting="list:1,1/4,1/4,1/4"), make_task(method, setting="list:1,1/4,9/64,1/4")
    if early.clients[0].width != 1:  # one width for all, which nobody may change
        return
    extended = method.extend(late, on_task(early, method.init_server(early)))
    expected = on_task(late, method.init_server(late))
    # A width that a free seat had counted with may stay.
    assert expected.keys() <= extended.keys()
    assert all(torch.equal(v, extended[k]) for k, v in expected.items())
    same = method.extend(late, wire(expected))
    assert same.keys() == expected.keys()
    assert all(torch.equal(v, same[k]) for k, v in expected.items())
