"""Channels that meet are the same; those that do not are free."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pa3dfl.core.errors import UserError
from pa3dfl.methods.common.slicing import chosen_places
from pa3dfl.models import Model, factory_of
from pa3dfl.models.channels import channels


def model_of(factory, shape: tuple[int, ...] = (3, 8, 8)) -> Model:
    return Model(factory, "test", shape, 4)


def test_a_plain_stack_has_a_group_per_layer_though_sizes_repeat() -> None:
    found = channels(model_of(factory_of("cnn-cifar100"), (3, 32, 32)))
    assert found.sizes == {"conv1": 64, "conv2": 64, "fc1": 384, "fc2": 192}
    assert found.dims["conv1.weight"] == ("conv1", None)
    assert found.dims["conv2.weight"] == ("conv2", "conv1")
    assert found.dims["fc1.weight"] == ("fc1", "conv2")
    assert found.dims["head.weight"] == (None, "fc2")
    assert found.dims["fc1.bias"] == ("fc1",)
    assert found.dims["head.bias"] == (None,)


def test_layers_added_in_a_residual_network_share_channels() -> None:
    found = channels(model_of(factory_of("resnet18-gn"), (3, 32, 32)))
    assert found.layers["conv1"] == ("conv1", "blocks.0.conv2", "blocks.1.conv2")
    assert found.layers["blocks.6.conv2"] == ("blocks.6.conv2", "blocks.6.shortcut.0", "blocks.7.conv2")
    assert found.layers["blocks.3.conv1"] == ("blocks.3.conv1",)
    assert len(found.layers) == 4 + 8
    assert found.dims["blocks.6.shortcut.0.weight"] == ("blocks.6.conv2", "blocks.4.conv2")
    assert found.dims["blocks.1.norm1.bias"] == ("blocks.1.conv1",)
    assert found.dims["blocks.1.norm2.bias"] == ("conv1",)


class Odd(nn.Module):
    """A depthwise convolution, a layer that is applied twice, a gate, a scalar parameter, an unused one."""

    def __init__(self, width: float) -> None:
        super().__init__()
        a, b = int(16 * width), int(32 * width)
        self.stem = nn.Conv2d(3, a, 3, padding=1)
        self.depthwise = nn.Conv2d(a, a, 3, padding=1, groups=a)
        self.fc = nn.Linear(a * 64, b, bias=False)
        self.norm = nn.LayerNorm(b)
        self.twice = nn.Linear(b, b)
        self.gate = nn.Linear(b, b)
        self.temperature = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(7))
        self.head = nn.Linear(b, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.depthwise(self.stem(x))).flatten(1)
        x = self.norm(self.fc(x))
        x = self.twice(F.relu(self.twice(x)))
        return self.head(self.temperature * x * self.gate(x).sigmoid())


def test_odd_networks() -> None:
    model = model_of(Odd)
    found = channels(model)
    assert found.layers == {"stem": ("stem", "depthwise"), "fc": ("fc", "twice", "gate")}
    assert found.dims["fc.weight"] == ("fc", "stem")
    assert found.dims["norm.weight"] == ("fc",)
    width, chosen = Fraction(1, 4), {"stem": torch.tensor([1, 5, 6, 15]), "fc": torch.arange(8) * 4}
    places = chosen_places(model, width, chosen)
    whole = {k: torch.arange(torch.Size(s).numel()).view(s) for k, s in model.shapes(Fraction(1)).items()}
    cut = {k: v[places[k]] for k, v in whole.items()}
    assert {k: tuple(v.shape) for k, v in cut.items()} == model.shapes(width)
    assert torch.equal(cut["depthwise.weight"], whole["depthwise.weight"][[1, 5, 6, 15]])
    columns = [64 * c + i for c in (1, 5, 6, 15) for i in range(64)]
    assert torch.equal(cut["fc.weight"], whole["fc.weight"][chosen["fc"]][:, columns])
    assert torch.equal(cut["head.weight"], whole["head.weight"][:, chosen["fc"]])
    assert torch.equal(cut["unused"], whole["unused"])


class Dense(nn.Module):
    def __init__(self, width: float) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, int(16 * width), 1), nn.Conv2d(3, int(8 * width), 1)
        self.head = nn.Linear(int(24 * width), 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.a(x), self.b(x)], 1).mean((2, 3)))


def test_concatenated_channels_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="'test' concatenates channels"):
        channels(model_of(Dense))
