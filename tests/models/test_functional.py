"""Networks called with given weights give what `functional_call` gives."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from pa3dfl.models.functional import FunctionalModule


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.again = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU())
        self.again[0].weight = self.first.weight
        self.own = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 3:
            raise ValueError("three features are needed")
        return self.again(self.first(x)) * self.own


def fresh(module: nn.Module) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {k: torch.randn(p.shape, requires_grad=True) for k, p in module.named_parameters()}


def test_results_and_gradients_equal_functional_call() -> None:
    weights, x = fresh(Tied()), torch.randn(2, 3)
    assert list(weights) == ["own", "first.weight", "first.bias"]
    result = FunctionalModule(Tied())(weights, x)
    expected = functional_call(Tied(), weights, (x,))
    assert torch.equal(result, expected)
    slopes = [torch.autograd.grad(y.square().sum(), list(weights.values())) for y in (result, expected)]
    assert all(map(torch.equal, *slopes))


@pytest.mark.parametrize("x", [torch.ones(2, 3), torch.ones(2, 4)], ids=["a call", "a call that fails"])
def test_weights_are_not_kept_after_a_call(x: Tensor) -> None:
    network = FunctionalModule(Tied())
    try:
        network(fresh(Tied()), x)
    except ValueError:
        assert x.shape[1] == 4
    assert {p.device.type for p in network.module.parameters()} == {"meta"}
    assert network.module.first.weight is network.module.again[0].weight, "still tied"


def test_surplus_weights_are_ignored_and_missing_ones_are_errors() -> None:
    weights, x = fresh(Tied()), torch.ones(2, 3)
    network = FunctionalModule(Tied())
    assert torch.equal(network(weights | {"head.weight": torch.ones(1)}, x), network(weights, x))
    del weights["first.bias"]
    with pytest.raises(KeyError, match=r"first\.bias"):
        network(weights, x)
    assert {p.device.type for p in network.module.parameters()} == {"meta"}
