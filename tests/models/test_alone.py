"""A network that stands alone computes what the model computes, at every width and for every kind of layer."""

from collections.abc import Callable
from fractions import Fraction

import pytest
import sequences
import torch
from networks import HALF, ONE, builtin, perceptron
from torch import Tensor, nn

from pa3dfl.models import Model
from pa3dfl.models.alone import network


class Tied(nn.Module):
    """The embedding is used by two names, and a buffer follows the width."""

    def __init__(self, width: float) -> None:
        super().__init__()
        h = int(16 * width)
        self.table = nn.Embedding(sequences.TOKENS, h)
        self.again = self.table
        self.register_buffer("shift", torch.linspace(0, 1, h))
        self.head = nn.Sequential(nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head((self.table(x) + self.again(x.flip(1)) + self.shift).mean(1))
        return out


def inputs(model: Model) -> Tensor:
    if model.whole_numbers:
        return torch.randint(0, sequences.TOKENS, (5, *model.input_shape))
    return torch.randn(5, *model.input_shape)


FACTORIES = {
    "lstm": sequences.lstm,
    "gru": sequences.gru,
    "transformer": sequences.transformer,
    "heads dropped": lambda width: sequences.Transformer(width, drop_heads=True),
    "flat": lambda width: sequences.Recurrent(nn.LSTM, width, flat=True, bidirectional=True),
    "tied": Tied,
}


@pytest.mark.parametrize("width", [ONE, HALF])
@pytest.mark.parametrize("name", FACTORIES)
def test_an_exported_network_computes_the_same(name: str, width: Fraction) -> None:
    factory: Callable[..., nn.Module] = FACTORIES[name]
    model = Model(factory, "mine:make", (sequences.LENGTH,), 4)
    params, x = model.init(width, 3), inputs(model)
    alone = network(model, params, width)
    assert isinstance(alone, type(factory(1.0)))
    torch.testing.assert_close(alone(x), model(params, x, width), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["cnn-fashion", "cnn-sensor", "vit-small", "lstm-text"])
def test_builtin_networks(name: str) -> None:
    model = builtin(name)
    params, x = model.init(HALF, 3), inputs(model)
    torch.testing.assert_close(network(model, params, HALF)(x), model(params, x, HALF), rtol=0, atol=1e-5)


def test_a_widened_layer_has_its_true_sizes() -> None:
    """Its factory cannot keep features full, so that its own module would be narrower."""
    model = Model(perceptron, "mine:make", (6,), 4, full_features=True)
    params, x = model.init(HALF, 3), inputs(model)
    alone = network(model, params, HALF)
    assert torch.equal(alone(x), model(params, x, HALF))
    sizes = [(m.in_features, m.out_features) for m in alone.modules() if isinstance(m, nn.Linear)]
    assert sizes == [(6, 8), (8, 32), (32, 4)]


def test_an_exported_network_shares_no_memory_with_its_source() -> None:
    """Weights are copies without gradients, and making the network draws no random number."""
    model = builtin("mlp-tabular")
    params = model.init(HALF, 3)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    alone = network(model, params, HALF)
    assert torch.equal(torch.rand(1), expected)
    assert not alone.training
    assert not any(p.requires_grad for p in alone.parameters())
    next(alone.parameters()).zero_()
    assert all(v.abs().sum() > 0 for k, v in params.items() if k.endswith("weight"))
