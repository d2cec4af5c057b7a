"""Recorded work is the sequential work: on a GPU, and on a CPU with the graphs and streams of `graphs.py`."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from graphs import graph_stream

from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.engines import Engine, Round, engine_of
from pa3dfl.engines.cuda import memory, program
from pa3dfl.engines.cuda.captured import Captured
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Method, Score
from pa3dfl.methods.pa3dfl.method import Pa3dFL
from pa3dfl.methods.problem import Task

Make = Callable[..., Any]
HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture(autouse=True)
def graphs_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    free = memory.free_memory
    monkeypatch.setattr(program, "GraphStream", graph_stream)
    monkeypatch.setattr(memory, "free_memory", lambda device: free(device) if device.type == "cuda" else 1 << 40)


def rounds(
    engine: Engine, method: Method, task: Task, n: int
) -> tuple[dict[str, torch.Tensor], list[Any], list[Score]]:
    """The server's state, losses and bytes, and the scores after n rounds of all clients, by all rules."""
    server = {k: v.to(task.device, task.dtype) for k, v in method.init_server(task).items()}
    private: dict[int, Any] = {}
    facts = []
    for rnd in range(1, n + 1):
        scored = {c.id for c in task.clients[1:]} if rnd == n else set()
        updates = engine.train(Round(method, task, server, private, task.clients, rnd, scored=scored))
        kept = [u.score for u in updates if u.score]
        assert {s.client for s in kept} == scored
        facts += [(u.client.id, u.bytes_down, u.loss) for u in updates]
        private |= {u.client.id: u.private for u in updates if u.private}
        server = method.aggregate(task, server, updates, rnd)
    work = Round(method, task, server, private, task.clients, n)
    return server, facts, kept + engine.evaluate(work, ["adapted", "received"])


def assert_equal(ours: Any, reference: Any) -> None:
    for k, v in reference[0].items():
        torch.testing.assert_close(ours[0][k], v, rtol=0, atol=1e-9)
    for mine, theirs in zip(ours[1], reference[1], strict=True):
        assert mine[:2] == theirs[:2]
        assert mine[2] == pytest.approx(theirs[2], abs=1e-9)
    for mine, theirs in zip(ours[2], reference[2], strict=True):
        assert (mine.client, mine.rule, mine.alpha) == (theirs.client, theirs.rule, theirs.alpha)
        assert mine.test_accuracy == theirs.test_accuracy
        assert mine.val_loss == pytest.approx(theirs.val_loss, abs=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", methods.registry())
def test_equal_to_the_sequential_engine(
    name: str, device: str, make_task: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several rounds, so that a replay starts from other weights than it was recorded with; partial batches too."""
    monkeypatch.setattr(program, "IN_A_ROW", 2)  # of three full batches in an epoch
    n = 20 if device == "cuda" else 4  # the emulation is slow, and rounds as sequential work does
    method = methods.find(name)()
    task = make_task(method, device=device, epochs=2, setting="list:1/4,1,1/16,1/4")
    assert_equal(rounds(Captured(), method, task, n), rounds(Sequential(), method, task, n))


@pytest.mark.parametrize("device", DEVICES)
def test_a_client_is_tested_with_its_private_state(device: str, make_task: Make) -> None:
    method = Pa3dFL(keep="all")
    task = make_task(method, device=device)
    ours, reference = (rounds(engine, method, task, 3) for engine in (Captured(), Sequential()))
    assert_equal(ours, reference)
    assert any(score.alpha > 0 for score in reference[2] if score.rule == "received")
    plain = rounds(Sequential(), Pa3dFL(), task, 3)
    assert plain[1] == reference[1]
    assert plain[2] != reference[2]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", methods.registry())
def test_steps_in_float32(name: str, device: str, make_task: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step an epoch."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    method = methods.find(name)()
    epochs = 10 if device == "cuda" else 3
    task = make_task(method, device=device, precision="fp32", epochs=epochs, batch=40, lr=0.005)
    server = {k: v.to(task.device) for k, v in method.init_server(task).items()}
    work = Round(method, task, server, {}, task.clients, 1)
    for ours, reference in zip(Captured().train(work), Sequential().train(work), strict=True):
        assert ours.client == reference.client
        assert ours.loss == pytest.approx(reference.loss, rel=1e-5)
        for k, v in reference.tree.items():
            torch.testing.assert_close(ours.tree[k], v, rtol=0, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", ["pa3dfl", "fedavg"])
def test_one_stream_equals_many(name: str, make_task: Make) -> None:
    """Concurrent graphs with a common workspace would overwrite each other's sums."""
    method = methods.find(name)()
    task = make_task(method, device="cuda", clients=16, setting="ideal", epochs=4, precision="fp32")
    ends = [rounds(Captured(at_once), method, task, 1) for at_once in (1, 16)]
    for k, v in ends[0][0].items():
        assert torch.equal(ends[1][0][k], v), k


@pytest.mark.parametrize("device", DEVICES)
def test_a_stopped_round_does_not_affect_the_next(
    device: str, make_task: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients have begun, with steps to go, when the third one fails."""
    monkeypatch.setattr(program, "IN_A_ROW", 2)
    method = methods.find("fedavg")()
    task = make_task(method, device=device, epochs=4)
    engine, begun, begin = Captured(), [], Captured._begin

    def failing(self: Captured, work: Round, client: Any, down: Any) -> Any:
        if len(begun) == 2:
            raise KeyboardInterrupt
        begun.append(client)
        return begin(self, work, client, down)

    with monkeypatch.context() as stopped:
        stopped.setattr(Captured, "_begin", failing)
        with pytest.raises(KeyboardInterrupt):
            rounds(engine, method, task, 1)
    assert any(p.todo for p in engine.streams.programs)
    assert_equal(rounds(engine, method, task, 1), rounds(Sequential(), method, task, 1))


@pytest.mark.parametrize("device", DEVICES)
def test_clients_that_do_not_fit_wait(
    device: str, make_task: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    method = methods.find("pa3dfl")()
    task = make_task(method, device=device, setting="list:1,1/4,1/4,1/16")
    reference = rounds(Sequential(), method, task, 2)
    engine = Captured(at_once=2)
    assert_equal(rounds(engine, method, task, 2), reference)
    assert not caplog.messages
    monkeypatch.setattr(memory, "free_memory", lambda _: memory.RESERVE)
    starved = Captured()
    assert_equal(rounds(starved, method, task, 2), reference)
    assert len(starved.streams.programs) == 1
    assert caplog.messages == ["the GPU holds one client at a time; the others wait"]


@pytest.mark.parametrize("device", DEVICES)
def test_no_more_clients_at_once_than_the_limit(device: str, make_task: Make) -> None:
    """Four clients of one width: as many programs as may run beside each other."""
    method = methods.find("fedavg")()
    task = make_task(method, device=device, setting="ideal")
    for at_once in (1, 3, 64):
        engine = Captured(at_once)
        rounds(engine, method, task, 1)
        assert len(engine.streams.programs) == min(at_once, 4)


@pytest.mark.parametrize("device", DEVICES)
def test_an_engine_serves_one_task_after_another(device: str, make_task: Make) -> None:
    """The second task must not use the first one's programs, which have other step sizes and shapes."""
    engine = Captured()
    for name, weight_decay in (("fedavg", 0.0), ("fedavg", 0.1), ("ditto", 0.1)):
        method = methods.find(name)()
        task = make_task(method, device=device, weight_decay=weight_decay)
        assert_equal(rounds(engine, method, task, 1), rounds(Sequential(), method, task, 1))


def test_a_program_fits_if_its_memory_is_free_beyond_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs of 3 GiB at width 1/2 and 1 GiB at 1/4: at most 6 for each unit of width."""
    held: Any = [SimpleNamespace(taken=gib << 30, width=w, device="a card") for gib, w in ((3, HALF), (1, QUARTER))]
    for free, widest in ((8, Fraction(15, 16)), (5, Fraction(7, 16)), (2, None)):
        monkeypatch.setattr(memory, "free_memory", lambda _, free=free: free << 30)
        fits = [w for w in (Fraction(n, 16) for n in range(1, 17)) if memory.Memory().fits(w, held)]
        assert max(fits, default=None) == widest


def test_refused_without_a_gpu() -> None:
    with pytest.raises(UserError, match="needs a CUDA GPU"):
        engine_of("captured", torch.device("cpu"))
    assert engine_of("auto", torch.device("cpu")).name == "threaded"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_data_in_the_hosts_memory(make_task: Make) -> None:
    method = methods.find("pa3dfl")()
    near = make_task(method, device="cuda", setting="list:1,1/4,1/4,1/16")
    data = dataclasses.replace(near.data, x=near.data.x.cpu(), y=near.data.y.cpu(), device=near.device)
    assert data.travels
    far = dataclasses.replace(near, data=data)
    assert_equal(rounds(Captured(), method, far, 2), rounds(Sequential(), method, near, 2))
