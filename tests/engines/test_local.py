"""A client's local work: the order of rows, the step, the choice of the tested model."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pa3dfl.engines import local
from pa3dfl.methods import find
from pa3dfl.methods.fedavg import FedAvg
from pa3dfl.task import LocalTraining

Make = Callable[..., Any]
PLAIN = LocalTraining(epochs=1, batch=10, lr=0.1, lr_decay=0.5, weight_decay=0.0, clip_norm=0.0)


def test_step_size_decays_after_every_round() -> None:
    assert [PLAIN.rate(r) for r in (1, 2, 3)] == pytest.approx([0.1, 0.05, 0.025])


def test_every_epoch_meets_every_row_once_in_a_fresh_order(make_task: Make) -> None:
    task = make_task(find("fedavg")(), epochs=3, batch=10)
    client = task.clients[0]
    rows, _, sizes = local.order(task, client, 1, "train")
    assert sizes == [10, 10, 10, 2] * 3
    epochs = rows.split(32)
    mine = sorted(task.data.rows(0, "train").tolist())
    assert [sorted(e.tolist()) for e in epochs] == [mine] * 3
    assert not torch.equal(epochs[0], epochs[1])
    assert torch.equal(local.order(task, client, 1, "train")[0], rows)
    for other in (local.order(task, client, 2, "train"), local.order(task, client, 1, "test")):
        assert not torch.equal(other[0], rows)


@pytest.mark.parametrize("augment", [False, True])
def test_batches_are_the_rows_of_the_order(augment: bool, make_task: Make) -> None:
    """More of them than are made together."""
    task = make_task(find("fedavg")(), epochs=3, batch=10)
    task = replace(task, data=replace(task.data, augment=augment))
    client = task.clients[0]
    rows, crops, sizes = local.order(task, client, 1, "train")
    assert len(sizes) > local.AT_ONCE
    pieces = [None] * len(sizes) if crops is None else crops.split(sizes)
    made = list(local.batches(task, client, 1, "train"))
    for (x, y), chosen, crop in zip(made, rows.split(sizes), pieces, strict=True):
        expected = task.data.batch(chosen, crop, task.dtype)
        assert torch.equal(x, expected[0])
        assert torch.equal(y, expected[1])


def stepped(gradient: list[float], **changes: float) -> list[float]:
    theta = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    sgd = local.SGD.of(find("fedavg")(), replace(PLAIN, **changes), theta)
    sgd.step([torch.tensor([g]) for g in gradient], torch.tensor(0.5))
    return [float(v) for v in theta.values()]


def test_the_step() -> None:
    assert stepped([1.0, 2.0]) == [2.5, 3.0]
    # Norm 5 clipped to 1: a fifth of the gradient.
    assert stepped([3.0, 4.0], clip_norm=1.0) == pytest.approx([2.7, 3.6])
    assert stepped([3.0, 4.0], clip_norm=5.5) == [1.5, 2.0]
    assert stepped([0.0, 0.0], weight_decay=0.1) == pytest.approx([2.85, 3.8])
    # Decay is added after clipping.
    assert stepped([3.0, 4.0], clip_norm=1.0, weight_decay=0.1) == pytest.approx([2.55, 3.4])


def test_entries_of_one_scale_step_together_whatever_lies_between_them() -> None:
    class Scaled(FedAvg):
        def step_scale(self, name: str) -> float:
            return 10.0 if name == "b" else 1.0

    theta = {k: torch.zeros(1) for k in "abc"}
    gradient = {id(theta[k]): torch.tensor([g]) for k, g in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    sgd = local.SGD.of(Scaled(), PLAIN, theta)
    sgd.step([gradient[id(p)] for p in sgd.params], torch.tensor(0.5))
    assert [float(v) for v in theta.values()] == [-0.5, -10.0, -1.5]


CURVE = {0.0: (0.5, 1.0), 0.5: (0.7, 0.9), 0.6: (0.7, 0.8), 0.7: (0.7, 0.8), 1.0: (0.6, 0.2)}


@pytest.mark.parametrize(("select", "chosen"), [("accuracy", 0.6), ("loss", 1.0)])
def test_the_tested_model(select: str, chosen: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Best accuracy, ties to the lower loss, then to the first; or lowest loss."""

    def measure(_: Any, __: Any, ___: Any, candidate: float, part: str) -> tuple[float, float]:
        return CURVE[candidate] if part == "val" else (candidate, 0.0)

    monkeypatch.setattr(local, "measure", measure)
    candidates: Any = {alpha: alpha for alpha in CURVE}
    score = local.score(find("fedavg")(), None, SimpleNamespace(id=7), candidates, select)  # type: ignore[arg-type]
    accuracy, loss = CURVE[chosen]
    assert score == local.Score(7, accuracy, loss, chosen, chosen)


def test_accuracy_and_loss_are_means_over_rows(make_task: Make) -> None:
    method = find("fedavg")()
    task = make_task(method)
    params = {k: v.double() for k, v in method.init_server(task).items()}
    x, y = task.data.batch(task.data.rows(0, "train"), None, task.dtype)
    logits = task.model(params, x, task.clients[0].width)
    accuracy, loss = local.measure(method, task, task.clients[0], params, "train")
    assert accuracy == pytest.approx(float((logits.argmax(1) == y).double().mean()))
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y)))
