"""A client's local work: the order of rows, the step, the choice of the tested model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pa3dfl.engines import Round, local
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import find
from pa3dfl.methods.fedavg import FedAvg
from pa3dfl.methods.problem import LocalTraining

Make = Callable[..., Any]
PLAIN = LocalTraining(epochs=1, batch=10, lr=0.1, lr_decay=0.5, weight_decay=0.0, clip_norm=0.0)


def test_step_size_decays_after_every_round() -> None:
    assert [PLAIN.rate(r) for r in (1, 2, 3)] == pytest.approx([0.1, 0.05, 0.025])


def test_every_epoch_has_every_row_once_in_a_new_order(make_task: Make) -> None:
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
    """More batches than are made at once."""
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


def test_entries_of_one_scale_step_together_in_any_order() -> None:
    class Scaled(FedAvg):
        def step_scale(self, name: str) -> float:
            return 10.0 if name == "b" else 1.0

    theta = {k: torch.zeros(1) for k in "abc"}
    gradient = {id(theta[k]): torch.tensor([g]) for k, g in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    sgd = local.SGD.of(Scaled(), PLAIN, theta)
    sgd.step([gradient[id(p)] for p in sgd.params], torch.tensor(0.5))
    assert [float(v) for v in theta.values()] == [-0.5, -10.0, -1.5]


# (correct of ten, sum of losses) of five candidates
CURVE = [(5.0, 10.0), (7.0, 9.0), (7.0, 8.0), (7.0, 8.0), (6.0, 2.0)]
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("select", "curve", "chosen"),
    [
        ("accuracy", CURVE, 2),  # ties go to the lower loss, then to the first
        ("loss", CURVE, 4),
        ("accuracy", [(5.0, NAN), (5.0, 3.0)], 1),
        ("accuracy", [(4.0, 1.0), (5.0, NAN), (5.0, INF)], 1),
        ("loss", [(5.0, NAN), (0.0, INF), (0.0, 9.0)], 2),
        ("accuracy", [(3.0, 7.0)], 0),
    ],
)
def test_the_tested_model(select: str, curve: list[tuple[float, float]], chosen: int) -> None:
    assert int(local.choose(torch.tensor(curve, dtype=torch.float64), select)) == chosen


def test_a_score_is_means_over_rows_of_the_chosen_model(make_task: Make) -> None:
    """Of three models, only the one that is best on validation rows is tested."""
    method = find("fedavg")()
    task = make_task(method)
    client = task.clients[0]
    start = {k: v.double() for k, v in method.init_server(task).items()}
    trained, _ = local.train(method, replace(task, local=replace(task.local, epochs=20)), client, start, {}, 1, "train")
    candidates = {0.0: start, 0.5: {k: torch.zeros_like(v) for k, v in start.items()}, 1.0: trained}
    means = {}
    for part in ("val", "test"):
        x, y = task.data.batch(task.data.rows(0, part), None, task.dtype)
        logits = task.model(trained, x, client.width)
        right = float((logits.argmax(1) == y).double().mean())
        means[part] = right, float(torch.nn.functional.cross_entropy(logits, y))
    predicted, predict = [], FedAvg.predict

    class Counting(FedAvg):
        def predict(self, *given: Any) -> Any:
            predicted.append(len(given[-1]))
            return predict(self, *given)

    score = local.score(Counting(), task, client, "adapted", candidates, "accuracy")
    assert (score.client, score.rule, score.alpha) == (0, "adapted", 1.0)
    assert (score.val_accuracy, score.val_loss) == pytest.approx(means["val"])
    assert score.test_accuracy == pytest.approx(means["test"][0])
    _, n_val, n_test = task.data.sizes(0)
    assert predicted == [n_val] * 3 + [n_test]


def test_validation_rows_are_normalised_once_for_all_candidates(
    make_task: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = find("pa3dfl")()
    task = make_task(method)
    made, batch = [], type(task.data).batch
    monkeypatch.setattr(type(task.data), "batch", lambda *given: made.append(len(given[1])) or batch(*given))
    work = Round(method, task, {k: v.double() for k, v in method.init_server(task).items()}, {}, task.clients[:1], 1)
    Sequential().evaluate(work, ["received"])
    _, n_val, n_test = task.data.sizes(0)
    assert made == [n_val, n_test]
