"""Steps without Python: the same bits as with it, and a line about what cannot be recorded."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from pa3dfl import methods
from pa3dfl.core.tree import Tree
from pa3dfl.engines import Round, local
from pa3dfl.engines.cpu import recorded
from pa3dfl.engines.cpu.recorded import Recorded
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.engines.sequential import private_of
from pa3dfl.methods import Method
from pa3dfl.methods.fedavg import FedAvg
from pa3dfl.methods.problem import Task

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "OFTEN", 1)


def trained(method: Method, task: Task, by: Callable[..., local.Stepper]) -> tuple[Tree, float]:
    """The second client, of a quarter's capacity, after its first pass."""
    client = task.clients[1]
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    [down] = method.download(task, server, [client], 1)
    start, fixed = method.begin(task, client, down, private_of(method, task, None, client))
    return local.train(method, task, client, start, fixed, 1, "train", by)


def steps_of(engine: Recorded) -> list[recorded.Step]:
    return [step for kind in engine._kinds.values() for step in kind.steps.values()]


@pytest.mark.parametrize("name", methods.registry())
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_bits(name: str, precision: str, make_task: Make) -> None:
    """With clipping and decay and two sizes of batches: recorded, proven, replayed."""
    method = methods.find(name)()
    task = make_task(method, engine="auto", precision=precision, clip_norm=1.0, weight_decay=0.01)
    expected, loss = trained(method, task, local.stepper)
    engine = Recorded()
    for _ in range(3):
        tree, same_loss = trained(method, task, engine.stepper)
        assert same_loss == loss
        assert all(torch.equal(v, expected[k]) for k, v in tree.items())
    assert len(steps_of(engine)) >= 2
    assert all(step.proven for step in steps_of(engine))


def test_a_recording_serves_all_clients_and_rounds_of_its_kind(
    make_task: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FedAvg()
    task = make_task(method, engine="auto", lr_decay=0.5)
    engine = Threaded(2)
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    before = [engine.train(Round(method, task, server, {}, task.clients, rnd)) for rnd in (1, 2)]
    assert all(step.proven for step in steps_of(engine._recorded))
    monkeypatch.setattr(local, "differentiate", None)  # Python's way is closed
    after = [engine.train(Round(method, task, server, {}, task.clients, rnd)) for rnd in (1, 2)]
    for some, others in zip(before, after, strict=True):
        for a, b in zip(some, others, strict=True):
            assert a.loss == b.loss
            assert all(torch.equal(v, b.tree[k]) for k, v in a.tree.items())


def test_what_a_thread_makes_once_is_not_replayed(make_task: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """The thread that records may be new to a width that others have trained often."""
    method = FedAvg()
    task = make_task(method, engine="auto")
    engine = Recorded()
    task.model._networks.by_width.clear()
    trained(method, task, engine.stepper)
    trained(method, task, engine.stepper)
    assert all(step.proven for step in steps_of(engine))
    assert not capsys.readouterr().err


def test_what_is_rare_is_not_recorded(make_task: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "OFTEN", 5)
    method, engine = FedAvg(), Recorded()
    task = make_task(method, engine="auto", epochs=2, batch=10)
    trained(method, task, engine.stepper)
    # Six steps of ten rows and two of two; the sixth proves what the fifth has recorded.
    assert [(step.times, step.proven) for step in steps_of(engine)] == [(6, True), (2, False)]
    trained(method, task, engine.stepper)
    assert [(step.times, step.proven) for step in steps_of(engine)] == [(6, True), (4, False)]


class OfValues(FedAvg):
    name = "of-values"

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Any, noise: Tree) -> Tensor:
        loss = super().loss(task, width, theta, fixed, batch, noise)
        return loss if float(loss.detach()) > 0.5 else 2 * loss


class Declared(OfValues):
    capturable = False


class OfLists(FedAvg):
    """TorchScript forgets what is written into lists."""

    name = "of-lists"

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Any, noise: Tree) -> Tensor:
        twice = [batch[0].clone()]
        torch._foreach_mul_(twice, 2.0)
        return super().loss(task, width, theta, fixed, (twice[0], batch[1]), noise)


class OfLabels(FedAvg):
    """What is read past PyTorch's operations."""

    name = "of-labels"

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Any, noise: Tree) -> Tensor:
        return (1 + sum(batch[1].tolist())) * super().loss(task, width, theta, fixed, batch, noise)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            OfValues(),
            "of-values stay in Python, which is slower: aten._local_scalar_dense.default reads values",
        ),
        (OfLists(), "done again, a step is another one"),
        (OfLabels(), "done again, a step is another one"),
        (Declared(), ""),
    ],
)
def test_what_cannot_be_recorded_is_done_in_python(
    method: Method, said: str, make_task: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make_task(FedAvg(), engine="auto")
    expected, _ = trained(method, task, local.stepper)
    engine = Recorded()
    for _ in range(2):
        tree, _ = trained(method, task, engine.stepper)
        assert all(torch.equal(v, expected[k]) for k, v in tree.items())
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (1 if said else 0)
    assert all(said in line for line in lines)
