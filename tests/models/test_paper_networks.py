"""The paper's networks at every width."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from networks import EIGHTH, HALF, ONE, PAPER, SHAPES, SIXTEENTH, builtin, size
from torch import nn

from pa3dfl.models import NAMES, Model, cnn, factory_of


@pytest.mark.parametrize(
    ("width", "c1", "c2", "flat", "h1", "h2"),
    [(ONE, 32, 64, 3136, 512, 128), (HALF, 16, 32, 1568, 256, 64), (Fraction(3, 16), 6, 12, 588, 96, 24),
     (SIXTEENTH, 2, 4, 196, 32, 8)],
)  # fmt: skip
def test_fashion_cnn(width: Fraction, c1: int, c2: int, flat: int, h1: int, h2: int) -> None:
    assert builtin("cnn-fashion").shapes(width) == {
        "conv1.weight": (c1, 1, 5, 5), "conv1.bias": (c1,), "conv2.weight": (c2, c1, 5, 5), "conv2.bias": (c2,),
        "fc1.weight": (h1, flat), "fc1.bias": (h1,), "fc2.weight": (h2, h1), "fc2.bias": (h2,),
        "head.weight": (10, h2), "head.bias": (10,),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("width", "c", "flat", "h1", "h2"),
    [(ONE, 64, 1600, 384, 192), (HALF, 32, 800, 192, 96), (EIGHTH, 8, 200, 48, 24), (SIXTEENTH, 4, 100, 24, 12)],
)
def test_cifar100_cnn(width: Fraction, c: int, flat: int, h1: int, h2: int) -> None:
    assert builtin("cnn-cifar100").shapes(width) == {
        "conv1.weight": (c, 3, 5, 5), "conv1.bias": (c,), "conv2.weight": (c, c, 5, 5), "conv2.bias": (c,),
        "fc1.weight": (h1, flat), "fc1.bias": (h1,), "fc2.weight": (h2, h1), "fc2.bias": (h2,),
        "head.weight": (100, h2), "head.bias": (100,),
    }  # fmt: skip


def test_convolutions_of_the_cnns_pad_as_in_the_table() -> None:
    for name, padding in (("cnn-fashion", (2, 2)), ("cnn-cifar100", (0, 0))):
        module = factory_of(name)(1.0)
        convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
        assert [(m.padding, m.stride) for m in convolutions] == [(padding, (1, 1))] * 2


def test_resnet_has_torchvisions_size() -> None:
    """11,181,642 parameters is torchvision's ResNet-18 for 10 classes; GroupNorm(2, C) has BatchNorm's."""
    model = builtin("resnet18-gn")
    assert [size(model, w) for w in (ONE, HALF, SIXTEENTH)] == [11_181_642, 2_801_450, 45_102]
    module = factory_of("resnet18-gn")(1.0)
    norms = [m for m in module.modules() if isinstance(m, nn.GroupNorm)]
    assert [m.num_groups for m in norms] == [2] * 20
    assert len(model.layers) == 20  # 1 + 16 + 3 shortcuts
    assert factory_of("resnet18-gn")(1.0).conv1.weight.shape == (64, 3, 7, 7)


def test_resnet_halves_the_picture_five_times() -> None:
    module = factory_of("resnet18-gn")(1 / 16)
    seen: list[tuple[int, ...]] = []
    hook = module.blocks.register_forward_hook(lambda _m, x, y: seen.append((*x[0].shape, *y.shape)))
    module(torch.zeros(2, 3, 64, 64))
    hook.remove()
    assert seen == [(2, 4, 16, 16, 2, 32, 2, 2)]


@pytest.mark.parametrize(("name", "last", "features", "sizes"), [
    ("cnn-fashion", "fc2.weight", 128, (1_725_194, 12_074)),
    ("cnn-cifar100", "fc2.weight", 192, (815_332, 27_232)),
    ("resnet18-gn", "blocks.7.conv2.weight", 512, (11_444_810, 206_510)),
])  # fmt: skip
def test_full_features_keep_the_last_output_and_the_head(
    name: str, last: str, features: int, sizes: tuple[int, int]
) -> None:
    model, classes = builtin(name, full_features=True), SHAPES[name][1]
    for width in (ONE, HALF, SIXTEENTH):
        shapes = model.shapes(width)
        assert shapes[last][0] == features
        assert shapes["head.weight"] == (classes, features)
        assert shapes["conv1.weight"][0] == model.shapes(ONE)["conv1.weight"][0] * width
        params = model.init(width, 0)
        x = torch.randn(2, *SHAPES[name][0])
        assert model.features(params, x, width).shape == (2, features)
        assert model(params, x, width).shape == (2, classes)
        assert shapes.keys() == model.shapes(ONE).keys()
    assert (size(model, ONE), size(model, SIXTEENTH)) == sizes
    assert builtin(name).shapes(SIXTEENTH)["head.weight"] == (classes, features // 16)


@pytest.mark.parametrize("name", NAMES)
def test_head_on_features_is_the_network(name: str) -> None:
    model = builtin(name)
    params, x = model.init(EIGHTH, 1), torch.randn(3, *SHAPES[name][0])
    if model.whole_numbers:
        x = torch.randint(0, 80, x.shape)
    features = model.features(params, x, EIGHTH)
    logits = F.linear(features, params["head.weight"], params["head.bias"])
    torch.testing.assert_close(logits, model(params, x, EIGHTH))
    assert logits.std() > 0
    assert model.head == "head"
    assert "head" not in model.layers


@pytest.mark.parametrize("name", PAPER)
def test_the_networks_fit_other_inputs(name: str) -> None:
    shape, classes = ((2, 20, 24), 7) if name != "cnn-cifar100" else ((2, 24, 20), 7)
    model = Model(factory_of(name), name, shape, classes)
    model.check(SIXTEENTH)
    assert model(model.init(EIGHTH, 0), torch.zeros(3, *shape), EIGHTH).shape == (3, 7)


def test_leading_channels_match_leading_columns_of_the_next_layer() -> None:
    """A narrow CNN is the wide one whose other channels are zero: features are flattened channel first."""
    model = builtin("cnn-fashion")
    narrow, shapes = model.init(HALF, 0), model.shapes(ONE)
    wide = {k: torch.zeros(s) for k, s in shapes.items()}
    for k, v in narrow.items():
        wide[k][tuple(slice(0, n) for n in v.shape)] = v
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(model(wide, x, ONE), model(narrow, x, HALF))


def test_init_follows_from_the_seed_alone() -> None:
    model = builtin("cnn-fashion")
    torch.manual_seed(1)
    one = model.init(EIGHTH, 5)
    state = torch.get_rng_state()
    again, other = model.init(EIGHTH, 5), model.init(EIGHTH, 6)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, again[k]) for k, v in one.items())
    assert not torch.equal(one["fc1.weight"], other["fc1.weight"])


def test_layers_are_those_with_a_weight_before_the_head() -> None:
    model = builtin("cnn-fashion")
    assert model.layers == ("conv1", "conv2", "fc1", "fc2")
    named = {k: model.is_layer(k) for k in ("conv1.weight", "fc2.weight", "conv1.bias", "head.weight", "weight")}
    assert named == dict(zip(named, (True, True, False, False, False), strict=True))


def test_a_bias_gives_the_same_added_by_pixel_or_by_image(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = cnn.PooledConv2d(3, 8, 5, padding=2).to(torch.bfloat16)
    x = torch.randn(4, 3, 12, 12, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    image_by_image = layer(x)
    weights = torch.randn(image_by_image.shape, dtype=torch.bfloat16)
    (gradient,) = torch.autograd.grad((image_by_image * weights).float().sum(), layer.bias)
    assert torch.allclose(gradient.float(), weights.float().sum((0, 2, 3)), rtol=0.02, atol=0.2)
    monkeypatch.setattr(cnn, "BFLOAT16_VECTOR", 0)
    assert torch.equal(layer(x), image_by_image)
