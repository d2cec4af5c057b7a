"""Robust aggregation: literal numbers, and liars in a small federation."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from pa3dfl.core.tree import Tree
from pa3dfl.engines import Round
from pa3dfl.engines.sequential import Sequential
from pa3dfl.federation.robust import centre_of, general, robust
from pa3dfl.methods import Update, find
from pa3dfl.methods.problem import Client

Make = Callable[..., Any]


def update(i: int, tree: Tree) -> Update:
    return Update(Client(i, Fraction(1), Fraction(1), 10), tree, 10, {}, 0.0, 0)


def test_centres() -> None:
    values = torch.tensor([[1.0, 9.0], [2.0, 8.0], [3.0, 7.0], [4.0, 6.0], [100.0, -100.0]])
    assert centre_of("median", values).tolist() == [3.0, 7.0]
    assert centre_of("trimmed", values).tolist() == [3.0, 7.0]
    assert centre_of("median", values[:4]).tolist() == [2.5, 7.5]
    assert centre_of("trimmed", values[:4]).tolist() == [2.5, 7.5]  # a fifth of four is none


def test_entries_are_general_if_all_clients_were_sent_equal_values() -> None:
    downs = [{"u": torch.ones(2), "v": torch.full((2,), float(i)), "b": torch.zeros(i + 1)} for i in range(3)]
    updates = [update(i, {k: v + i for k, v in d.items()}) for i, d in enumerate(downs)]
    assert general(downs, updates) == ["u"]
    out = robust("median", downs, updates)
    assert [u.tree["u"].tolist() for u in out] == [[2.0, 2.0]] * 3
    assert all(torch.equal(a.tree["v"], b.tree["v"]) for a, b in zip(out, updates, strict=True))


def test_clipping_shortens_the_longest_moves() -> None:
    downs = [{"u": torch.zeros(2)} for _ in range(3)]
    updates = [update(i, {"u": torch.tensor(v)}) for i, v in enumerate([[3.0, 4.0], [0.0, 1.0], [30.0, 40.0]])]
    out = robust("clip", downs, updates)
    assert [u.tree["u"].tolist() for u in out] == [[3.0, 4.0], [0.0, 1.0], [3.0, 4.0]]


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed", "clip"])
def test_equal_updates_do_not_change(rule: str) -> None:
    downs = [{"u": torch.zeros(2)} for _ in range(5)]
    updates = [update(i, {"u": torch.tensor([1.0, 2.0])}) for i in range(5)]
    assert [u.tree["u"].tolist() for u in robust(rule, downs, updates)] == [[1.0, 2.0]] * 5


@pytest.mark.parametrize("name", ["pa3dfl", "fedavg"])
@pytest.mark.parametrize("rule", ["median", "clip"])
def test_one_malicious_client_of_four_has_less_influence(name: str, rule: str, make_task: Make) -> None:
    """A tenfold update moves the general parameters less far from where the honest ones would be."""
    method = find(name)()
    task = make_task(method, setting="ideal", p_min="1/16")
    start = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}

    def after(rule: str, lie: float) -> Tree:
        work = Round(method, task, start, {}, task.clients, 1, sent={})
        updates = Sequential().train(work)
        downs = [work.sent[c.id] for c in task.clients]
        for k, v in updates[0].tree.items():
            v.copy_(downs[0][k] + lie * (v - downs[0][k]))
        return method.aggregate(task, {k: v.clone() for k, v in start.items()}, robust(rule, downs, updates), 1)

    def distance(a: Tree, b: Tree) -> float:
        names = [k for k in a if not k.startswith("hn/")]
        return float(sum((a[k] - b[k]).square().sum() for k in names))

    honest = after("mean", 1.0)
    assert distance(after(rule, 10.0), honest) < distance(after("mean", 10.0), honest) / 2
