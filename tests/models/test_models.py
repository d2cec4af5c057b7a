"""The paper's networks at every width, and what is said about a user's network that cannot work."""

import math
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pa3dfl.errors import UserError
from pa3dfl.models import NAMES, Model, factory_of
from pa3dfl.models.registry import import_object

ONE, HALF, EIGHTH, SIXTEENTH = (Fraction(1, n) for n in (1, 2, 8, 16))
SHAPES = {"cnn-fashion": ((1, 28, 28), 10), "cnn-cifar100": ((3, 32, 32), 100), "resnet18-gn": ((3, 32, 32), 10)}


def ours(name: str, full_features: bool = False) -> Model:
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
    """What a user writes who knows nothing of this package."""
    h = int(16 * width)
    return nn.Sequential(nn.Linear(6, h), nn.ReLU(), nn.Linear(h, 2 * h), nn.ReLU(), nn.Linear(2 * h, 4))


# --- the paper's table ---


@pytest.mark.parametrize(
    ("width", "c1", "c2", "flat", "h1", "h2"),
    [(ONE, 32, 64, 3136, 512, 128), (HALF, 16, 32, 1568, 256, 64), (Fraction(3, 16), 6, 12, 588, 96, 24),
     (SIXTEENTH, 2, 4, 196, 32, 8)],
)  # fmt: skip
def test_fashion_cnn(width: Fraction, c1: int, c2: int, flat: int, h1: int, h2: int) -> None:
    assert ours("cnn-fashion").shapes(width) == {
        "conv1.weight": (c1, 1, 5, 5), "conv1.bias": (c1,), "conv2.weight": (c2, c1, 5, 5), "conv2.bias": (c2,),
        "fc1.weight": (h1, flat), "fc1.bias": (h1,), "fc2.weight": (h2, h1), "fc2.bias": (h2,),
        "head.weight": (10, h2), "head.bias": (10,),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("width", "c", "flat", "h1", "h2"),
    [(ONE, 64, 1600, 384, 192), (HALF, 32, 800, 192, 96), (EIGHTH, 8, 200, 48, 24), (SIXTEENTH, 4, 100, 24, 12)],
)
def test_cifar100_cnn(width: Fraction, c: int, flat: int, h1: int, h2: int) -> None:
    assert ours("cnn-cifar100").shapes(width) == {
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
    model = ours("resnet18-gn")
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
    model, classes = ours(name, full_features=True), SHAPES[name][1]
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
    assert ours(name).shapes(SIXTEENTH)["head.weight"] == (classes, features // 16)


@pytest.mark.parametrize("name", NAMES)
def test_head_on_features_is_the_network(name: str) -> None:
    model = ours(name)
    params, x = model.init(EIGHTH, 1), torch.randn(3, *SHAPES[name][0])
    features = model.features(params, x, EIGHTH)
    logits = F.linear(features, params["head.weight"], params["head.bias"])
    torch.testing.assert_close(logits, model(params, x, EIGHTH))
    assert logits.std() > 0
    assert model.head == "head"
    assert "head" not in model.layers


@pytest.mark.parametrize("name", NAMES)
def test_the_networks_fit_other_inputs(name: str) -> None:
    shape, classes = ((2, 20, 24), 7) if name != "cnn-cifar100" else ((2, 24, 20), 7)
    model = Model(factory_of(name), name, shape, classes)
    model.check(SIXTEENTH)
    assert model(model.init(EIGHTH, 0), torch.zeros(3, *shape), EIGHTH).shape == (3, 7)


def test_leading_channels_are_leading_columns() -> None:
    """A narrow CNN is the wide one whose other channels are zero: features are flattened channel first."""
    model = ours("cnn-fashion")
    narrow, shapes = model.init(HALF, 0), model.shapes(ONE)
    wide = {k: torch.zeros(s) for k, s in shapes.items()}
    for k, v in narrow.items():
        wide[k][tuple(slice(0, n) for n in v.shape)] = v
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(model(wide, x, ONE), model(narrow, x, HALF))


def test_init_follows_from_the_seed_alone() -> None:
    model = ours("cnn-fashion")
    torch.manual_seed(1)
    one = model.init(EIGHTH, 5)
    state = torch.get_rng_state()
    again, other = model.init(EIGHTH, 5), model.init(EIGHTH, 6)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, again[k]) for k, v in one.items())
    assert not torch.equal(one["fc1.weight"], other["fc1.weight"])


def test_layers_are_those_with_a_weight_before_the_head() -> None:
    model = ours("cnn-fashion")
    assert model.layers == ("conv1", "conv2", "fc1", "fc2")
    named = {k: model.is_layer(k) for k in ("conv1.weight", "fc2.weight", "conv1.bias", "head.weight", "weight")}
    assert named == dict(zip(named, (True, True, False, False, False), strict=True))


# --- a user's own ---


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
    assert 0.4 < layer.abs().max() <= 0.5  # PyTorch's bound for 4 inputs
    assert layer.min() < -0.3


def test_a_factory_is_given_what_it_names() -> None:
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


def test_batch_norm_is_refused() -> None:
    refused(lambda w: nn.Sequential(nn.Linear(6, int(8 * w)), nn.BatchNorm1d(int(8 * w)), nn.Linear(int(8 * w), 4)),
            "has BatchNorm at '1': batch statistics do not federate; use GroupNorm or LayerNorm instead")  # fmt: skip


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell])
def test_recurrence_is_refused(layer: type[nn.Module]) -> None:
    def make(width: float) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), layer(8, int(8 * width)), nn.Linear(int(8 * width), 4))

    refused(make, f"has {layer.__name__} at '1': its gates or projections are stacked in one weight")


def test_stacked_attention_is_refused() -> None:
    refused(lambda w: nn.Sequential(nn.Linear(6, 8), nn.MultiheadAttention(int(8 * w), 1), nn.Linear(8, 4)),
            "has MultiheadAttention at '1'")  # fmt: skip


def test_a_factory_that_ignores_its_width_is_refused() -> None:
    refused(lambda width: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)),
            r"ignores its width: it has the same shapes at width 1/4 and 1; multiply its hidden sizes")  # fmt: skip


def test_sizes_that_do_not_divide_are_refused() -> None:
    complaint = (
        r"dimension 0 of 0.weight is 10 wide, and 10 × 1/4 = 2.5 \(the factory made 2\); make it a multiple of 4"
    )
    refused(lambda w: nn.Sequential(nn.Linear(6, int(10 * w)), nn.Linear(int(10 * w), 4)), complaint)
    with pytest.raises(UserError, match=r"conv1.weight is 32 wide, and 32 × 1/7 = 4.57143 \(the factory made 4\)"):
        ours("cnn-fashion").check(Fraction(1, 7))


def test_a_layer_without_outputs_is_refused_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match=r"conv1.weight is 32 wide, and 32 × 1/64 = 0.5 \(the factory made 0\)"):
            ours("cnn-fashion").check(Fraction(1, 64))


def test_a_width_in_use_is_checked_too() -> None:
    model = own(lambda w: nn.Sequential(nn.Linear(6, int(12 * w)), nn.Linear(int(12 * w), 4)))
    model.check(Fraction(1, 4))
    with pytest.raises(UserError, match=r"12 × 5/16 = 3.75 \(the factory made 3\); make it a multiple of 16"):
        model.shapes(Fraction(5, 16))


def test_layers_that_come_and_go_are_refused() -> None:
    def make(width: float) -> nn.Module:
        h = int(8 * width)
        return nn.Sequential(nn.Linear(6, h), nn.Linear(h, h) if width == 1 else nn.Identity(), nn.Linear(h, 4))

    refused(make, "has other parameters at width 1/4 than at 1: a width may change the sizes of layers, not which")


def test_a_factory_that_raises_is_quoted_in_one_line() -> None:
    def make(width: float) -> nn.Module:
        raise RuntimeError("no such luck\nand more lines" if width == 1 else "other")

    refused(make, "cannot be built at width 1: RuntimeError: no such luck$")
    refused(lambda: nn.Linear(1, 1), "cannot be built at width 1: TypeError: .* takes 0 positional arguments")  # type: ignore[misc]


def test_a_factory_that_raises_without_a_word() -> None:
    def make(width: float) -> nn.Module:
        raise NotImplementedError

    refused(make, "NotImplementedError: no message$")


def test_no_module_is_refused() -> None:
    refused(lambda width: {"a": 1}, "gave a dict: expected a torch.nn.Module")  # type: ignore[arg-type,return-value]
    refused(nn.ReLU, "maps a batch of \\(6,\\) to \\(6,\\) in 0 layers")


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda w: nn.Sequential(nn.Linear(6, int(8 * w)), nn.Linear(int(8 * w), 3)), r"\(3,\) in 2 layers"),
        (lambda w: nn.Linear(6, 4), r"\(4,\) in 1 layers"),
        (lambda w: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Linear(6, 8), nn.Conv1d(1, 4, 8), nn.Flatten()),
         r"\(4,\) in 2 layers"),
    ],
    ids=["three logits for four classes", "a head alone", "a convolution for a head"],
)  # fmt: skip
def test_a_wrong_end_is_refused(make: Callable[[float], nn.Module], found: str) -> None:
    refused(make, f"maps a batch of \\(6,\\) to {found}: expected 4 logits from a torch.nn.Linear head after at least")


class TwoAnswers(nn.Module):
    def __init__(self, width: float) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, int(8 * width)), nn.Linear(int(8 * width), 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.inner(x)), x


def test_more_than_logits_is_refused() -> None:
    refused(TwoAnswers, "maps a batch to a tuple: expected a tensor of logits")


def test_lazy_layers_are_refused() -> None:
    refused(lambda w: nn.Sequential(nn.LazyLinear(int(8 * w)), nn.Linear(int(8 * w), 4)),
            "leaves the size of 0.weight open: give the layer its input size")  # fmt: skip


class Uncalled(nn.Module):
    """Applies the weight of its first layer by hand, or not at all."""

    def __init__(self, width: float, used: bool) -> None:
        super().__init__()
        self.used, hidden = used, int(32 * width)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, hidden)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(self.second(x @ self.first.weight.T if self.used else x).relu())


def test_a_weight_that_is_used_without_its_layer_is_refused() -> None:
    left_over = Model(partial(Uncalled, used=False), "mine", (1, 4, 4), 10)
    assert left_over.layers == ("second",)
    frozen = Model(lambda width: Uncalled(width, used=False).requires_grad_(False), "mine", (1, 4, 4), 10)
    assert frozen.layers == ("second",)
    with pytest.raises(UserError, match=r"uses 'first.weight' without calling the layer.* call it, as in"):
        Model(partial(Uncalled, used=True), "mine", (1, 4, 4), 10)


def test_inputs_that_do_not_fit_are_refused() -> None:
    refused(lambda w: nn.Sequential(nn.Linear(5, int(8 * w)), nn.Linear(int(8 * w), 4)),
            r"at width 1 cannot take a batch of shape \(6,\): RuntimeError: mat1 and mat2")  # fmt: skip
    for name in NAMES:
        with pytest.raises(UserError, match=r"it needs images \(channels, height, width\), and the data has \(6,\)"):
            Model(factory_of(name), name, (6,), 4)


def test_a_norm_before_the_head_needs_the_argument() -> None:
    def make(width: float) -> nn.Module:
        h = int(16 * width)
        return nn.Sequential(nn.Linear(6, h), nn.Linear(h, h), nn.LayerNorm(h), nn.Linear(h, 4))

    own(make).check(Fraction(1, 4))
    refused(make, "does not run with its last encoder layer '1' at full output: give its factory an argument "
            "full_features=False that keeps that layer unpruned", full_features=True)  # fmt: skip


# --- names ---


def test_a_mistyped_name_is_corrected() -> None:
    with pytest.raises(
        UserError, match=r"^unknown model 'cnn-fasion': expected one of .*; did you mean cnn-fashion[?]$"
    ):
        factory_of("cnn-fasion")
    with pytest.raises(UserError, match=r"your own is given as package.module:factory$"):
        factory_of("x")


def test_a_factory_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("nearby_factory.py").write_text("def make(width):\n    return width\nnumber = 3\n")
    assert factory_of("nearby_factory:make")(0.5) == 0.5  # type: ignore[comparison-overlap]
    with pytest.raises(UserError, match=r"^model 'nearby_factory:number' is a int: expected a callable that takes"):
        factory_of("nearby_factory:number")


@pytest.mark.parametrize(
    ("path", "source", "reason"),
    [
        ("nowhere_at_all:make", "", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("broken_a:make", "x = 1", "AttributeError: .* has no attribute 'make'"),
        ("broken_b:make", "def make(:", "SyntaxError: "),
        ("broken_c:make", "raise OSError('a\\nb')", "OSError: a"),
        ("broken_d:make", "import sys; sys.exit(3)", "SystemExit: 3"),
        (":make", "", "ValueError: Empty module name"),
        ("broken_a:", "x = 1", "AttributeError"),
    ],
)
def test_what_cannot_be_imported_says_why(
    path: str, source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    if source:
        Path(path.partition(":")[0] + ".py").write_text(source)
    with pytest.raises(UserError, match=f"^model '{path}' could not be imported \\({reason}") as caught:
        import_object(path, "model")
    assert "\n" not in str(caught.value)
    assert "importable from the current directory or PYTHONPATH" in str(caught.value)


def test_resnet_has_no_strided_pointwise_convolution() -> None:
    """oneDNN's backward pass of one writes past its memory below 8 channels, in channels-last memory."""
    module = factory_of("resnet18-gn")(1 / 16)
    pointwise = [m for m in module.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert [m.stride for m in pointwise] == [(1, 1)] * 3
    x = torch.randn(2, 4, 8, 8)
    block = module.blocks[2]  # type: ignore[index]
    strided = F.conv2d(x, block.shortcut[0].weight, stride=2)
    torch.testing.assert_close(block.shortcut[0](x[..., :: block.stride, :: block.stride]), strided)


def test_strided_points_are_noticed() -> None:
    """Which decides about the layout on a CPU."""

    def residual(width: float, num_classes: int = 3, stride: int = 2) -> nn.Module:
        shortcut = nn.Conv2d(1, int(16 * width), 1, stride)
        return nn.Sequential(shortcut, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(int(16 * width), num_classes))

    assert Model(residual, "residual", (1, 8, 8), 3).strided_points
    assert not Model(partial(residual, stride=1), "plain", (1, 8, 8), 3).strided_points
