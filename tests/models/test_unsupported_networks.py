"""Anybody's network: what cannot work, and what is said about it."""

import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
from networks import builtin, own, refused
from torch import Tensor, nn

from pa3dfl.core.errors import UserError
from pa3dfl.models import NAMES, Model, factory_of


def test_batch_norm_is_refused() -> None:
    refused(lambda w: nn.Sequential(nn.Linear(6, int(8 * w)), nn.BatchNorm1d(int(8 * w)), nn.Linear(int(8 * w), 4)),
            "has BatchNorm at '1': batch statistics do not federate; use GroupNorm or LayerNorm instead")  # fmt: skip


def test_heads_that_are_neither_kept_nor_dropped_whole_are_refused() -> None:
    class Attentive(nn.Module):
        def __init__(self, width: float) -> None:
            super().__init__()
            e = int(32 * width)
            self.inner = nn.Linear(6, e)
            self.attention = nn.MultiheadAttention(e, {1.0: 8, 0.5: 4, 0.25: 8}.get(width, 1), batch_first=True)
            self.head = nn.Linear(e, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)[:, None]
            return self.head(self.attention(y, y, y)[0][:, 0])

    refused(Attentive, "has 8 heads at 'attention' at width 1/4: expected 2, because other widths have fewer heads of")


def test_a_factory_that_ignores_its_width_is_refused() -> None:
    refused(lambda width: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)),
            r"ignores its width: it has the same shapes at width 1/4 and 1; multiply its hidden sizes")  # fmt: skip


def test_sizes_that_do_not_divide_are_refused() -> None:
    complaint = (
        r"dimension 0 of 0.weight is 10 wide, and 10 × 1/4 = 2.5 \(the factory made 2\); make it a multiple of 4"
    )
    refused(lambda w: nn.Sequential(nn.Linear(6, int(10 * w)), nn.Linear(int(10 * w), 4)), complaint)
    with pytest.raises(UserError, match=r"conv1.weight is 32 wide, and 32 × 1/7 = 4.57143 \(the factory made 4\)"):
        builtin("cnn-fashion").check(Fraction(1, 7))


def test_a_layer_without_outputs_is_refused_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match=r"conv1.weight is 32 wide, and 32 × 1/64 = 0.5 \(the factory made 0\)"):
            builtin("cnn-fashion").check(Fraction(1, 64))


def test_a_width_in_use_is_checked_too() -> None:
    model = own(lambda w: nn.Sequential(nn.Linear(6, int(12 * w)), nn.Linear(int(12 * w), 4)))
    model.check(Fraction(1, 4))
    with pytest.raises(UserError, match=r"12 × 5/16 = 3.75 \(the factory made 3\); make it a multiple of 16"):
        model.shapes(Fraction(5, 16))


def test_layers_that_exist_at_some_widths_only_are_refused() -> None:
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


def test_a_factory_that_returns_no_module_is_refused() -> None:
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
def test_a_network_without_a_linear_head_is_refused(make: Callable[[float], nn.Module], found: str) -> None:
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
            "does not fix the size of 0.weight: give the layer its input size")  # fmt: skip


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
            r"at width 1 cannot take a batch of shape \(6,\): RuntimeError: .*mat1 and mat2")  # fmt: skip
    for name in NAMES:
        needed = "(images|sensors|tokens|a row)"
        with pytest.raises(UserError, match=rf"it needs {needed}.*, and the data has \(1, 2, 3, 4\)"):
            Model(factory_of(name), name, (1, 2, 3, 4), 4)
