"""TorchScript steps: the same bits as in Python, a message about what cannot be recorded, and the switch."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import build
from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.data import Arrays
from pa3dfl.engines import Round, local
from pa3dfl.engines.cpu import torchscript
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.engines.cpu.torchscript import TorchScriptSteps
from pa3dfl.engines.sequential import private_of
from pa3dfl.methods import Method, Update
from pa3dfl.methods.fedavg import FedAvg
from pa3dfl.methods.problem import Task

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchscript, "OFTEN", 1)


def trained(method: Method, task: Task, by: Callable[..., local.Stepper]) -> tuple[Tree, float]:
    """The second client, with a capacity of 1/4, after its first pass."""
    client = task.clients[1]
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    [down] = method.download(task, server, [client], 1)
    start, fixed = method.begin(task, client, down, private_of(method, task, None, client))
    return local.train(method, task, client, start, fixed, 1, "train", by)


def steps_of(engine: TorchScriptSteps) -> list[torchscript.Step]:
    return [step for kind in engine._kinds.values() for step in kind.steps.values()]


def steps_with_equal_bits(method: Method, task: Task) -> list[torchscript.Step]:
    """The steps of three passes that give the bits of steps in Python."""
    expected, loss = trained(method, task, local.stepper)
    engine = TorchScriptSteps()
    for _ in range(3):
        tree, same_loss = trained(method, task, engine.stepper)
        assert same_loss == loss
        assert all(torch.equal(v, expected[k]) for k, v in tree.items())
    return steps_of(engine)


@pytest.mark.parametrize("name", methods.registry())
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recorded_steps_give_the_same_bits(name: str, precision: str, make_task: Make) -> None:
    """With clipping and decay and two sizes of batches: recorded, proven, replayed."""
    method = methods.find(name)()
    task = make_task(method, engine="auto", precision=precision, clip_norm=1.0, weight_decay=0.01)
    steps = steps_with_equal_bits(method, task)
    assert len(steps) >= 2
    assert all(step.proven for step in steps)


@pytest.mark.parametrize("name", ["fedavg", "fjord", "pa3dfl"])
def test_steps_of_an_lstm_give_the_same_bits(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """OneDNN's LSTM keeps what its backward pass reads only while gradients are enabled."""
    method, rng = methods.find(name)(), np.random.default_rng(0)
    arrays = Arrays(rng.integers(1, 9, (80, 6)), np.arange(80) % 8, 9)
    task = build(method, arrays, model="lstm-text", engine="auto", precision="fp32")
    assert any(step.proven for step in steps_with_equal_bits(method, task))
    assert not caplog.messages


def test_a_failure_of_the_interpreter_names_the_operation_and_the_error() -> None:
    run = torch.jit.CompilationUnit("def f(x: Tensor):\n    y = torch.ops.aten.view(x, [7])\n    return y\n").f
    with pytest.raises(RuntimeError) as e:
        run(torch.ones(3))
    assert torchscript.reason(e.value) == "aten.view: RuntimeError: shape '[7]' is invalid for input of size 3"
    assert torchscript.reason(ValueError("odd\nin two lines")) == "odd"
    assert torchscript.reason(ValueError()) == "ValueError()"


def test_one_recording_serves_all_clients_and_rounds_of_a_width(
    make_task: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FedAvg()
    task = make_task(method, engine="auto", lr_decay=0.5)
    engine = Threaded(2)
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    before = [engine.train(Round(method, task, server, {}, task.clients, rnd)) for rnd in (1, 2)]
    assert all(step.proven for step in steps_of(engine._steps))
    monkeypatch.setattr(local, "differentiate", None)  # Python's way is closed
    after = [engine.train(Round(method, task, server, {}, task.clients, rnd)) for rnd in (1, 2)]
    for some, others in zip(before, after, strict=True):
        for a, b in zip(some, others, strict=True):
            assert a.loss == b.loss
            assert all(torch.equal(v, b.tree[k]) for k, v in a.tree.items())


def test_caches_that_a_thread_fills_are_not_recorded(make_task: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The thread that records may be new to a width that others have trained often."""
    method = FedAvg()
    task = make_task(method, engine="auto")
    engine = TorchScriptSteps()
    task.model._networks.by_width.clear()
    trained(method, task, engine.stepper)
    trained(method, task, engine.stepper)
    assert all(step.proven for step in steps_of(engine))
    assert not caplog.messages


def test_rare_steps_are_not_recorded(make_task: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchscript, "OFTEN", 5)
    method, engine = FedAvg(), TorchScriptSteps()
    task = make_task(method, engine="auto", epochs=2, batch=10)
    trained(method, task, engine.stepper)
    # Six steps of ten rows and two of two; the sixth proves what the fifth has recorded.
    assert [(step.times, step.proven) for step in steps_of(engine)] == [(6, True), (2, False)]
    trained(method, task, engine.stepper)
    assert [(step.times, step.proven) for step in steps_of(engine)] == [(6, True), (4, False)]


class OfValues(FedAvg):
    name = "of-values"

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Any, draws: Tree) -> Tensor:
        loss = super().loss(task, width, theta, fixed, batch, draws)
        return loss if float(loss.detach()) > 0.5 else 2 * loss


class Declared(OfValues):
    capturable = False


class OfLists(FedAvg):
    """TorchScript loses writes into lists."""

    name = "of-lists"

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Any, draws: Tree) -> Tensor:
        twice = [batch[0].clone()]
        torch._foreach_mul_(twice, 2.0)
        return super().loss(task, width, theta, fixed, (twice[0], batch[1]), draws)


class OfLabels(FedAvg):
    """What is read past PyTorch's operations."""

    name = "of-labels"

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Any, draws: Tree) -> Tensor:
        return (1 + sum(batch[1].tolist())) * super().loss(task, width, theta, fixed, batch, draws)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            OfValues(),
            "of-values stay in Python, which gives the same results but is slower: aten._local_scalar_dense.default re",
        ),
        (OfLists(), "the replay differs from the original step"),
        (OfLabels(), "the replay differs from the original step"),
        (Declared(), ""),
    ],
)
def test_steps_that_cannot_be_recorded_run_in_python(
    method: Method, said: str, make_task: Make, caplog: pytest.LogCaptureFixture
) -> None:
    task = make_task(FedAvg(), engine="auto")
    expected, _ = trained(method, task, local.stepper)
    engine = TorchScriptSteps()
    for _ in range(2):
        tree, _ = trained(method, task, engine.stepper)
        assert all(torch.equal(v, expected[k]) for k, v in tree.items())
    assert len(caplog.messages) == (1 if said else 0)
    assert all(said in message for message in caplog.messages)


@pytest.mark.parametrize("name", ["fedavg", "fjord", "pa3dfl"])
def test_the_engine_gives_the_same_bits_without_torchscript(
    name: str, make_task: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = methods.find(name)()
    task = make_task(method, engine="auto")
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}

    def updates(engine: Threaded) -> list[Update]:
        return [u for rnd in (1, 2) for u in engine.train(Round(method, task, server, {}, task.clients, rnd))]

    with_it = Threaded(2)
    expected = updates(with_it)
    assert any(step.proven for step in steps_of(with_it._steps))
    monkeypatch.setenv("PA3DFL_TORCHSCRIPT", "0")
    monkeypatch.setattr(torch.jit, "CompilationUnit", None)
    without = Threaded(2)
    for a, b in zip(updates(without), expected, strict=True):
        assert a.loss == b.loss
        assert all(torch.equal(v, b.tree[k]) for k, v in a.tree.items())
    assert not steps_of(without._steps)


def test_the_switch_refuses_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PA3DFL_TORCHSCRIPT", "off")
    with pytest.raises(UserError, match=r"PA3DFL_TORCHSCRIPT is 'off': expected 0 .* or 1"):
        Threaded(1)
