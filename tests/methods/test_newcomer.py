"""A newcomer of a trained hyper-network: absent before it joins, then found by its trained parameters."""

import pytest
import torch

from pa3dfl.core.tree import wire
from pa3dfl.methods.common.hypernetwork import NEWCOMER, HyperNetwork, Output
from pa3dfl.methods.common.newcomer import arrive, settle


def network(attention: bool) -> HyperNetwork:
    outputs = {"a": Output((4, 6), 1.0), "b": Output((3,), 1.0)}
    return HyperNetwork(outputs, 3, 5, 2, 0.5, 0.1, 1.0, 0.1, 0.0, attention)


@pytest.mark.parametrize("attention", [True, False])
def test_absent_clients_have_no_part_in_the_mix(attention: bool) -> None:
    hn, shapes = network(attention), [{"a": (4, 6), "b": (3,)}] * 2
    whole = {k: v.double() for k, v in hn.init(4, 0, absent=[1]).items()}
    fewer = wire(whole | {"embeddings": whole["embeddings"][[0, 2, 3]]})
    del fewer["absent"]
    for a, b in zip(hn.generate(whole, [0, 3], shapes), hn.generate(fewer, [0, 2], shapes), strict=True):
        torch.testing.assert_close(a, b)
    target = hn.generate(fewer, [1], shapes[:1])
    hn.update(whole, [0], [wire(target[0])])
    hn.update(fewer, [0], [wire(target[0])])
    torch.testing.assert_close(whole["embeddings"][[0, 2, 3]], fewer["embeddings"])
    assert whole["absent"].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("attention", [True, False])
def test_settle_finds_the_embedding_that_generated_the_parameters(attention: bool) -> None:
    """From pruned parameters of another embedding, an embedding is learned that generates the same."""
    hn, shapes = network(attention), [{"a": (2, 3), "b": (3,)}]
    tree = {k: v.double() for k, v in hn.init(4, 0).items()}
    there = tree | {NEWCOMER: tree["embeddings"][2] + 0.1}
    [target] = hn.generate(there, [0], shapes)
    start = tree | arrive(tree)
    found = start | settle(hn, start, target)
    [near], [far] = hn.generate(found, [0], shapes), hn.generate(start, [0], shapes)
    for k in target:
        torch.testing.assert_close(near[k], target[k], atol=1e-4, rtol=0)
    assert sum(float((far[k] - target[k]).abs().sum()) for k in target) > 1e-2
