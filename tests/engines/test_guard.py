"""The guard: an update that is not what was asked for is rejected with a reason, and the round goes on."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pa3dfl.core.tree import Tree, wire
from pa3dfl.engines import Round
from pa3dfl.engines.guard import LARGEST_NORM, Guard, objection
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Update, find

Make = Callable[..., Any]
SPEC = {"w": ((2, 3), torch.float32), "b": ((2,), torch.float32)}


def honest() -> Tree:
    return {"w": torch.ones(2, 3), "b": torch.zeros(2)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"w": None}, "missing key 'w'"),
        ({"extra": torch.ones(1)}, "unexpected key 'extra'"),
        ({"w": torch.ones(3, 2)}, "'w' has shape (3, 2), expected (2, 3)"),
        ({"w": torch.ones(1, 3)}, "'w' has shape (1, 3), expected (2, 3)"),
        ({"w": torch.ones(())}, "'w' has shape (), expected (2, 3)"),
        ({"b": torch.zeros(2, dtype=torch.float64)}, "'b' has dtype torch.float64, expected torch.float32"),
        ({"b": torch.zeros(2, dtype=torch.int64)}, "'b' has dtype torch.int64, expected torch.float32"),
        ({"b": torch.tensor([0.0, float("nan")])}, "'b' has a value that is NaN or infinite"),
        ({"w": torch.full((2, 3), float("inf"))}, "'w' has a value that is NaN or infinite"),
        ({"w": torch.full((2, 3), float("-inf"))}, "'w' has a value that is NaN or infinite"),
        ({"b": [0.0, 0.0]}, "'b' is a list, expected a tensor"),
    ],
)
def test_reasons_for_rejection(change: dict[str, Any], reason: str) -> None:
    tree = {k: v for k, v in ({**honest(), **change}).items() if v is not None}
    assert objection(tree, SPEC) == reason


def test_an_honest_update_passes() -> None:
    assert objection(honest(), SPEC) is None
    assert objection({}, {}) is None


junk = st.one_of(
    st.none(), st.integers(), st.text(max_size=3), st.lists(st.floats(), max_size=3),
    st.builds(
        lambda shape, dtype, value: torch.full(shape, value).to(dtype),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.sampled_from([torch.float32, torch.float64, torch.int32]),
        st.sampled_from([0.0, 1.0, float("nan"), float("inf")]),
    ),
)  # fmt: skip


@given(st.dictionaries(st.one_of(st.sampled_from(["w", "b"]), st.text(max_size=2), st.integers()), junk, max_size=4))
@settings(max_examples=500, deadline=None)
def test_a_tree_passes_only_if_it_fits_the_specification(tree: dict[Any, Any]) -> None:
    fits = (
        tree.keys() == SPEC.keys()
        and all(isinstance(v, torch.Tensor) for v in tree.values())
        and all((tuple(tree[k].shape), tree[k].dtype) == SPEC[k] for k in SPEC)
        and all(bool(torch.isfinite(v).all()) for v in tree.values())
    )
    assert (objection(tree, SPEC) is None) == fits


def test_bounds_on_norm_and_values() -> None:
    at_the_bound = {"w": torch.zeros(2, 3), "b": torch.tensor([LARGEST_NORM, 0.0])}
    assert objection(at_the_bound, SPEC) is None
    for value, reason in ((2e6, "norm 2e+06 is beyond 1e+06"), (1e30, "norm inf is beyond 1e+06")):
        assert objection({"w": torch.zeros(2, 3), "b": torch.tensor([0.0, -value])}, SPEC) == reason


def mutated(tree: Tree, rng: random.Random) -> dict[Any, Any]:
    """A tree with up to three things done to it, some of them harmless."""
    out: dict[Any, Any] = dict(tree)
    for _ in range(rng.randint(0, 3)):
        k = rng.choice(sorted(out, key=str)) if out else "w"
        v = out.get(k)
        if not isinstance(v, torch.Tensor) or v.numel() == 0:
            out[k] = rng.choice([None, 1.0, "w", torch.empty(0)])
            continue
        kind = rng.choice(["value", "shape", "dtype", "drop", "key", "type", "view"])
        if kind == "value":
            v = out[k] = v.clone(memory_format=torch.contiguous_format)
            number = rng.choice([0.0, -3.0, 1e3, 1e5, 1e30, -1e38, math.nan, math.inf, -math.inf])
            if v.is_floating_point():
                v.view(-1)[rng.randrange(v.numel())] = torch.tensor(number).to(v.dtype)
        elif kind == "shape":
            out[k] = rng.choice(
                [v.flatten(), v.flatten()[:1], v.sum(), v[None], v.expand(2, *v.shape), v.flatten()[:0]]
            )
        elif kind == "dtype":
            out[k] = v.to(rng.choice([torch.float64, torch.float32, torch.float16, torch.int64, torch.bool]))
        elif kind == "drop":
            del out[k]
        elif kind == "key":
            out[rng.choice([f"{k} ", f"{k}{k}", "", 3, None, ("w",), k])] = v
        elif kind == "type":
            out[k] = rng.choice([None, v.tolist(), v.numpy(), "tensor", {}, 1])
        else:
            out[k] = v.t().clone(memory_format=torch.contiguous_format).t() if v.ndim == 2 else v.flatten()
    return out


def test_ten_thousand_random_trees() -> None:
    """No exception; a tree passes only if it fits the specification exactly."""
    rng, accepted = random.Random(0), 0
    for _ in range(10_000):
        tree = mutated(honest(), rng)
        reason = objection(tree, SPEC)
        fits = (
            tree.keys() == SPEC.keys()
            and all(isinstance(v, torch.Tensor) for v in tree.values())
            and all((tuple(tree[k].shape), tree[k].dtype) == SPEC[k] for k in SPEC)
            and math.sqrt(sum(float(v.double().square().sum()) for v in tree.values())) <= LARGEST_NORM
        )
        assert (reason is None) == fits, (tree, reason)
        accepted += fits
    assert 1_000 < accepted < 9_000  # both sides were tried


@pytest.mark.parametrize("name", ["pa3dfl", "fedavg"])
def test_a_round_goes_on_without_malicious_clients(name: str, make_task: Make) -> None:
    """The server's state is that of the honest clients, and the malicious ones are named."""
    method = find(name)()
    task = make_task(method)

    def updates() -> tuple[Round, list[Update]]:
        server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
        work = Round(method, task, server, {}, task.clients, 1)
        return work, Sequential().train(work)

    work, sent = updates()
    key = next(iter(sent[1].tree))
    sent[1].tree[key].view(-1)[0] = float("nan")
    sent[3].n = 10**9
    good, bad = Guard(method, task).sift(sent[::-1], work.shapes)
    assert [u.client.id for u in good] == [0, 2]
    assert [(r.client, r.reason) for r in bad] == [
        (1, f"{key!r} has a value that is NaN or infinite"),
        (3, f"claims 1,000,000,000 training rows, declared {task.clients[3].n}"),
    ]
    after = wire(method.aggregate(task, work.server, good, 1))
    work, sent = updates()
    expected = method.aggregate(task, work.server, [sent[0], sent[2]], 1)
    assert after.keys() == expected.keys()
    assert all(torch.equal(after[k], expected[k]) for k in expected)
