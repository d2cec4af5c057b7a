"""Zeros at the end of a sequence are padding: the networks of the package do not see how many there are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pa3dfl.models import factory_of
from pa3dfl.models.sequences import Sensors, lengths

LENGTHS = st.lists(st.integers(1, 24), min_size=2, max_size=4)


def network(name: str, shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return factory_of(name)(
        1 / 16 if name != "transformer-sensor" else 1 / 4, input_shape=shape, num_classes=5
    ).double()


def rows(n: list[int], channels: int = 0, longest: int = 24) -> Tensor:
    g = torch.Generator().manual_seed(sum(n))
    x = torch.randint(1, 50, (len(n), *([channels] if channels else []), longest), generator=g)
    x = x.double() if channels else x
    return x * (torch.arange(longest) < torch.tensor(n).view(-1, *[1] * (x.ndim - 1)))


@pytest.mark.parametrize(
    ("name", "channels", "unit"),
    [("lstm-text", 0, 1), ("transformer-text", 0, 1), ("cnn-sensor", 3, 1), ("transformer-sensor", 3, 8)],
)
@given(n=LENGTHS, more=st.integers(0, 3))
@settings(deadline=None, max_examples=25)
def test_appended_padding_changes_nothing(name: str, channels: int, unit: int, n: list[int], more: int) -> None:
    """A row gives the same alone and padded among longer ones, and so do its gradients."""
    shape = (channels, 48) if channels else (48,)
    model = network(name, shape)
    n = [-(-m // unit) * unit for m in n]
    together = rows(n, channels, 24 + more * unit)
    out = model(together)
    for i, m in enumerate(n):
        alone = model(together[i : i + 1, ..., :m])
        torch.testing.assert_close(out[i : i + 1], alone, rtol=0, atol=1e-12)
    assert out.std() > 0
    params, how = list(model.parameters()), {"allow_unused": True, "materialize_grads": True}
    padded = torch.autograd.grad(out[0, 0], params, **how)
    alone = torch.autograd.grad(
        model(together[:1, ..., : n[0]])[0, 0], params, allow_unused=True, materialize_grads=True
    )
    for a, b in zip(padded, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@given(n=LENGTHS)
@settings(deadline=None, max_examples=25)
def test_pooled_quarters_are_those_of_the_whole_signal(n: list[int]) -> None:
    """Without padding it is the plain network that PyTorch's own modules make."""
    model = network("cnn-sensor", (3, 24))
    assert isinstance(model, Sensors)
    for m in n:
        x = rows([m], 3, m)
        plain = nn.Sequential(
            model.first, nn.ReLU(), nn.MaxPool1d(2, ceil_mode=True), model.second, nn.ReLU(),
            nn.AdaptiveAvgPool1d(4), nn.Flatten(), model.mix, nn.ReLU(), model.head,
        )  # fmt: skip
        torch.testing.assert_close(model(x), plain(x), rtol=0, atol=1e-12)


def test_lengths() -> None:
    x = torch.tensor([[3, 0, 2, 0], [0, 0, 0, 0], [1, 2, 3, 4]])
    assert lengths(x).tolist() == [3, 1, 4]
    assert lengths(torch.stack([x, x.roll(1, 0)], 1).double()).tolist() == [4, 3, 4]


def test_images_have_no_padding() -> None:
    """A black row below is part of the picture."""
    model = network("vit-small", (3, 8, 8))
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    x[:, :, 4:] = 0
    hidden = model.first(x) + model.position
    torch.testing.assert_close(model(x), model.head(model.encoder(hidden).mean(1)))
