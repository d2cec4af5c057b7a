"""The two ablations of the paper: what each takes away from Pa3dFL, and nothing else."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from pa3dfl import methods
from pa3dfl.methods.pa3dfl.ablations.flanc_decomposition import FlancDecomposition, FlancLayer, compose
from pa3dfl.methods.pa3dfl.ablations.without_hypernetwork import WithoutHyperNetwork
from pa3dfl.methods.pa3dfl.decomposition import LayerPlan
from pa3dfl.methods.pa3dfl.method import Pa3dFL, V, layout

Make = Callable[..., Any]


def test_ablations_are_found_by_name_but_not_listed_as_methods() -> None:
    ablations = methods.registry(methods.ABLATIONS)
    assert list(ablations) == ["pa3dfl-flanc", "pa3dfl-without-hn"]
    assert len(methods.registry()) == 12
    assert not ablations.keys() & methods.registry().keys()
    assert methods.find("pa3dfl-flanc") is FlancDecomposition


@pytest.mark.parametrize("name", methods.registry(methods.ABLATIONS))
def test_an_ablation_trains(name: str, make_task: Make, play: Make) -> None:
    method = methods.find(name)()
    task = make_task(method, epochs=2, setting="list:1,1/4,1/4,1/16")
    rounds = play(method, task, rounds=5, per_round=4).rounds
    first, last = (sum(u.loss for u in updates) for updates in (rounds[0], rounds[-1]))
    assert last < 0.8 * first


def test_nothing_personal_leaves_the_client(make_task: Make, play: Make) -> None:
    method = WithoutHyperNetwork()
    task = make_task(method)
    played = play(method, task, rounds=1, per_round=4)
    assert {k.partition("/")[0] for k in played.servers[-1]} == {"theta_u", "plain"}
    for update in played.rounds[0]:
        assert {k.partition("/")[0] for k in update.tree} == {"theta_u", "plain"}
        assert update.private.keys() == {V + k for k in ("conv1", "conv2", "fc1", "fc2", "head.weight", "head.bias")}
    # Widths are nested at the start, so that all clients begin as one.
    wide, narrow = (method.init_client(task, task.clients[i])[f"{V}fc1"] for i in (0, 3))
    assert torch.equal(wide[: len(narrow), :, : narrow.shape[2]], narrow)


def test_general_parts_are_averaged_as_in_pa3dfl(make_task: Make, play: Make) -> None:
    method = WithoutHyperNetwork()
    played = play(method, make_task(method), rounds=1, per_round=2)
    own, other = played.rounds[0]
    expected = (own.tree["theta_u/fc1"] + other.tree["theta_u/fc1"]) / 2
    assert torch.equal(played.servers[-1]["theta_u/fc1"], expected)


def test_every_output_mixes_the_same_basis() -> None:
    """W[t, g·R1 + c, k] = Σ_r u[(c, k), r]·v[t, g, r], term by term."""
    plan = FlancLayer("conv", 4, 6, (3, 1), R1=2, R2=5)
    u, v = torch.randn(plan.u_shape, dtype=torch.float64), torch.randn(plan.v_shape(), dtype=torch.float64)
    weight = compose(plan, u, v)
    assert weight.shape == (4, 6, 3, 1)
    for t, s, k in ((0, 0, 0), (3, 5, 2), (2, 3, 1)):
        g, c = divmod(s, 2)
        assert float(weight[t, s, k, 0]) == pytest.approx(sum(float(u[c * 3 + k, r] * v[t, g, r]) for r in range(5)))
    # A narrower client has leading outputs and leading groups of inputs.
    torch.testing.assert_close(compose(plan, u, v[:2, :1]), weight[:2, :2])


def test_sizes_of_the_flanc_decomposition(make_task: Make) -> None:
    method = FlancDecomposition()
    task = make_task(method)
    plans = {p.name: p for p in layout(method, task).layers}
    # R1 = S·p_min, but S where inputs are never pruned; R2 is Pa3dFL's: max(S, T, k²), in linear layers R1.
    assert [(p.R1, p.R2) for p in plans.values()] == [(1, 32), (2, 64), (64 * 4 // 16, 16), (32, 32)]
    assert isinstance(plans["conv1"], LayerPlan)
    ours = {p.name: p.R2 for p in layout(Pa3dFL(), make_task(Pa3dFL())).layers}
    assert all(ours[k] == plans[k].R2 for k in ("conv1", "conv2"))
    assert layout(method, task).v_shapes(Fraction(1, 4))["conv2"] == (16, 4, 64)
