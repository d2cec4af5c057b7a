"""A client per thread: the sequential engine's results, errors as they are, and a prompt stop."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pa3dfl import methods
from pa3dfl.core.tree import Tree
from pa3dfl.engines import Engine, Round, engine_of
from pa3dfl.engines.base import silent
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.engines.guard import Guard
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Task

Make = Callable[..., Any]
CPU = torch.device("cpu")


def play(engine: Engine, method: Method, task: Task, rounds: int) -> tuple[Tree, list[Any]]:
    """Server state after some rounds of all clients, and the scores of an evaluation then."""
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    private: dict[int, Tree] = {}
    for rnd in range(1, rounds + 1):
        work = Round(method, task, server, private, task.clients, rnd)
        good, bad = Guard(method, task).sift(engine.train(work), work.shapes)
        assert not bad
        private |= {u.client.id: u.private for u in good if u.private}
        server = method.aggregate(task, server, good, rnd)
    return server, engine.evaluate(Round(method, task, server, private, task.clients, rounds), ["adapted"])


@pytest.mark.parametrize("name", methods.registry())
def test_equal_to_the_sequential_engine(name: str, make_task: Make) -> None:
    """20 rounds in float64, plain layout in one thread against channels last in three."""
    method = methods.find(name)()
    small = {"setting": "list:1/16,1/16,1/256,1/256,1/256", "clients": 5, "batch": 16}
    reference = make_task(method, engine="sequential", **small)
    task = make_task(method, engine="auto", **small)
    expected, scores = play(engine_of("sequential", CPU), method, reference, 20)
    server, same_scores = play(engine_of("auto", CPU, 3), method, task, 20)
    for k, v in expected.items():
        torch.testing.assert_close(server[k], v, rtol=0, atol=1e-9)
    assert [(s.client, s.test_accuracy) for s in scores] == [(s.client, s.test_accuracy) for s in same_scores]


@pytest.mark.parametrize("name", methods.registry())
def test_ten_steps_in_float32(name: str, make_task: Make) -> None:
    """Layouts round differently; ten steps from equal states must not show it."""
    method = methods.find(name)()
    ends = []
    for engine in ("sequential", "threaded"):
        task = make_task(method, engine=engine, precision="fp32", epochs=10, batch=40, lr=0.004)
        ends.append(engine_of(engine, CPU, 2).train(Round(method, task, method.init_server(task), {}, task.clients, 1)))
    for a, b in zip(*ends, strict=True):
        assert a.client == b.client
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        for k, v in a.tree.items():
            torch.testing.assert_close(b.tree[k], v, rtol=0, atol=1e-5)


def test_neither_timing_nor_the_number_of_threads_changes_a_bit(make_task: Make) -> None:
    method = methods.find("ditto")()
    task = make_task(method, engine="auto", precision="fp32")
    states = [play(Threaded(n), method, task, 3) for n in (1, 2, 4, 4)]
    for server, scores in states[1:]:
        assert scores == states[0][1]
        assert all(torch.equal(v, states[0][0][k]) for k, v in server.items())


def test_images_of_one_channel_are_channels_last(make_task: Make) -> None:
    for engine, strides in (("sequential", (64, 64, 8, 1)), ("threaded", (64, 1, 8, 1))):
        data = make_task(methods.find("fedavg")(), engine=engine).data
        assert data.batch(torch.arange(3), None, torch.float32)[0].stride() == strides


def test_each_thread_uses_one_core(make_task: Make) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        engine, client = Threaded(2), make_task(methods.find("fedavg")()).clients[0]
        meet = threading.Barrier(2)  # both threads have come: neither does the other's part
        counts = engine.each(lambda _: (meet.wait(5), torch.get_num_threads())[1], [client] * 2, silent)
        assert (counts, torch.get_num_threads()) == ([1, 1], 3)
    finally:
        torch.set_num_threads(before)


def test_an_error_is_raised_unchanged_and_ends_the_other_threads(make_task: Make) -> None:
    engine, clients = Threaded(2), make_task(methods.find("fedavg")()).clients
    begun, ticks = [], []

    def work(i: int) -> int:
        begun.append(i)
        if i == 1:
            raise ZeroDivisionError("of client 1")
        while True:
            engine._go_on()
            time.sleep(0.001)

    with pytest.raises(ZeroDivisionError, match="of client 1"):
        engine.each(work, clients, lambda: ticks.append(1))
    assert sorted(begun) == [0, 1]
    assert not ticks
    assert engine.each(lambda i: -i, clients, lambda: ticks.append(1)) == [0, -1, -2, -3]
    assert len(ticks) == 4


def test_an_interrupt_ends_local_training_within_a_step(make_task: Make) -> None:
    method = methods.find("fedavg")()
    task = make_task(method, epochs=20_000, batch=40)
    server = {k: v.double() for k, v in method.init_server(task).items()}
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Threaded(2).train(Round(method, task, server, {}, task.clients, 1))
    assert time.monotonic() - started < 30


def test_the_client_with_most_work_starts_first(make_task: Make) -> None:
    task = make_task(methods.find("heterofl")(), setting="list:1/256,1,1/4,1/16")
    order: list[int] = []
    Threaded(1).each(order.append, task.clients, silent)
    assert order == [1, 2, 3, 0]
