"""Networks that tests of models share."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from torch import nn

from pa3dfl.core.errors import UserError
from pa3dfl.models import Model, factory_of

ONE, HALF, EIGHTH, SIXTEENTH = (Fraction(1, n) for n in (1, 2, 8, 16))
SHAPES = {"cnn-fashion": ((1, 28, 28), 10), "cnn-cifar100": ((3, 32, 32), 100), "resnet18-gn": ((3, 32, 32), 10),
          "vit-small": ((3, 32, 32), 10), "lstm-text": ((8,), 80), "transformer-text": ((8,), 80),
          "transformer-sensor": ((6, 128), 12), "cnn-sensor": ((6, 128), 12), "mlp-tabular": ((9,), 2)}  # fmt: skip
PAPER = ("cnn-fashion", "cnn-cifar100", "resnet18-gn")


def builtin(name: str, full_features: bool = False) -> Model:
    return Model(factory_of(name), name, *SHAPES[name], full_features)


def own(factory: Callable[..., nn.Module], full_features: bool = False, classes: int = 4) -> Model:
    return Model(factory, "mine:make", (6,), classes, full_features)


def size(model: Model, width: Fraction) -> int:
    return sum(math.prod(s) for s in model.shapes(width).values())


def refused(factory: Callable[..., nn.Module], complaint: str, full_features: bool = False) -> None:
    """Refused with one line, either when first seen or when checked at 1/4."""
    with pytest.raises(UserError, match=complaint) as caught:
        own(factory, full_features).check(Fraction(1, 4))
    assert str(caught.value).startswith("model 'mine:make'")
    assert "\n" not in str(caught.value)


def perceptron(width: float) -> nn.Module:
    """A network as a user writes it, without anything from this package."""
    h = int(16 * width)
    return nn.Sequential(nn.Linear(6, h), nn.ReLU(), nn.Linear(h, 2 * h), nn.ReLU(), nn.Linear(2 * h, 4))
