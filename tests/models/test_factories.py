"""Anybody's network: what works without further ado."""

from fractions import Fraction

import torch
import torch.nn.functional as F
from networks import HALF, ONE, own, perceptron
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def test_a_plain_factory_works() -> None:
    model = own(perceptron)
    model.check(Fraction(1, 4))
    assert (model.layers, model.head) == (("0", "2"), "4")
    assert model.shapes(Fraction(1, 4)) == {
        "0.weight": (4, 6), "0.bias": (4,), "2.weight": (8, 4), "2.bias": (8,), "4.weight": (4, 8), "4.bias": (4,),
    }  # fmt: skip
    assert model(model.init(HALF, 0), torch.zeros(3, 6), HALF).shape == (3, 4)


def test_a_plain_factory_is_widened() -> None:
    model = own(perceptron, full_features=True)
    model.check(Fraction(1, 4))
    assert model.shapes(Fraction(1, 4)) == {
        "0.weight": (4, 6), "0.bias": (4,), "2.weight": (32, 4), "2.bias": (32,), "4.weight": (4, 32), "4.bias": (4,),
    }  # fmt: skip
    params = model.init(Fraction(1, 4), 0)
    assert {k: tuple(v.shape) for k, v in params.items()} == model.shapes(Fraction(1, 4))
    x = torch.randn(3, 6)
    features = model.features(params, x, Fraction(1, 4))
    assert features.shape == (3, 32)
    torch.testing.assert_close(
        model(params, x, Fraction(1, 4)), F.linear(features, params["4.weight"], params["4.bias"])
    )
    assert model.shapes(ONE) == own(perceptron).shapes(ONE)


def test_widened_layers_start_differently() -> None:
    """Layer and head are drawn from one stream, not from its start each."""
    params = own(perceptron, full_features=True).init(Fraction(1, 4), 0)
    layer, head = (params[k].flatten()[:128] for k in ("2.weight", "4.weight"))
    assert abs(torch.corrcoef(torch.stack([layer, head]))[0, 1]) < 0.3


def test_a_factory_gets_the_keywords_that_it_names() -> None:
    calls: list[dict[str, object]] = []

    def make(width: float, num_classes: int, full_features: bool = False) -> nn.Module:
        calls.append({"width": width, "num_classes": num_classes, "full_features": full_features})
        h = int(16 * width)
        return nn.Sequential(
            nn.Linear(6, h),
            nn.Linear(h, 16 if full_features else h),
            nn.Linear(16 if full_features else h, num_classes),
        )

    model = own(make, full_features=True, classes=5)
    model.check(Fraction(1, 4))
    assert calls[0] == {"width": 1.0, "num_classes": 5, "full_features": True}
    assert calls[-1]["width"] == 0.25
    assert model.shapes(Fraction(1, 4))["2.weight"] == (5, 16)


def test_a_layer_norm_inside_is_no_obstacle() -> None:
    def make(width: float) -> nn.Module:
        h = int(16 * width)
        return nn.Sequential(nn.Linear(6, h), nn.LayerNorm(h), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 4))

    model = own(make, full_features=True)
    model.check(Fraction(1, 4))
    assert model.shapes(Fraction(1, 4))["1.weight"] == (4,)


def test_width_one_needs_no_narrowing() -> None:
    own(lambda width: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))).check(ONE)


def test_features_are_narrow_where_the_last_layer_cannot_keep_its_output() -> None:
    """A norm has a size of its own: the head then has the leading columns."""

    def make(width: float) -> nn.Module:
        h = int(16 * width)
        return nn.Sequential(nn.Linear(6, h), nn.Linear(h, h), nn.LayerNorm(h), nn.Linear(h, 4))

    model = own(make, full_features=True)
    model.check(Fraction(1, 4))
    assert model.shapes(Fraction(1, 4)) == own(make).shapes(Fraction(1, 4))
    assert model.features(model.init(HALF, 0), torch.zeros(3, 6), HALF).shape == (3, 8)


def test_a_factory_makes_real_tensors_while_costs_are_counted() -> None:
    """Factories copy layers, and PyTorch frees memory twice after a copy of a fake tensor."""
    made = []

    def factory(width: float) -> nn.Module:
        network = perceptron(width)
        made.append(type(next(network.parameters())))
        return network

    model = own(factory)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.shapes(HALF)["0.weight"] == (8, 6)
        assert all(isinstance(v, FakeTensor) for v in model.init(HALF, 0).values())
    assert len(made) > 2
    assert not any(issubclass(kind, FakeTensor) for kind in made)
