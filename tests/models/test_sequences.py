"""Recurrent networks and attention: a narrow network is the leading slice of every gate, head and direction."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import HALF, ONE
from sequences import LENGTH, TOKENS, Branches, Recurrent, Transformer, branches, gru, lstm, pooled, transformer
from torch import Tensor, nn

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.engines.cost import count_of
from pa3dfl.methods.common.slicing import chosen_places, cut, leading_places, rolling_places
from pa3dfl.methods.pa3dfl.decomposition import take_apart
from pa3dfl.models import Model
from pa3dfl.models.channels import channels

QUARTER, CPU = Fraction(1, 4), torch.device("cpu")
RECURRENT = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]),
        "num_layers": st.integers(1, 3),
        "bidirectional": st.booleans(),
        "bias": st.booleans(),
        "flat": st.booleans(),
        "hidden": st.sampled_from([8, 16]),
    }
)
ATTENTION = st.fixed_dictionaries(
    {
        "heads": st.sampled_from([1, 2, 4]),
        "norm_first": st.booleans(),
        "bias": st.booleans(),
        "activation": st.sampled_from(["relu", "gelu"]),
    }
)


def of(factory: Callable[..., nn.Module]) -> Model:
    return Model(factory, "test", (LENGTH,), 4)


def random_tree(model: Model, width: Fraction = ONE) -> Tree:
    g = torch.Generator().manual_seed(0)
    return {k: 0.3 * torch.randn(s, generator=g, dtype=torch.float64) for k, s in model.shapes(width).items()}


def tokens(n: int = 3) -> Tensor:
    return torch.randint(0, TOKENS, (n, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_norms(monkeypatch)


def plain_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms over channels would see the zeros of channels that are not held."""
    monkeypatch.setattr(
        F, "layer_norm", lambda x, shape, w, b, eps: x if w is None else x * w + (0 if b is None else b)
    )


def assert_alone(model: Model, places: Any, width: Fraction, scale: float = 1.0) -> None:
    """In a full model that is zero elsewhere, a slice computes what it computes alone.

    `scale`: attention divides by the root of a head's size, which is smaller in the slice.
    """
    part = cut(random_tree(model), places)
    assert {k: tuple(v.shape) for k, v in part.items()} == model.shapes(width)
    full = {k: torch.zeros(s, dtype=torch.float64) for k, s in model.shapes(ONE).items()}
    for k, v in part.items():
        full[k][places[k]] = v * scale if ".q." in k else v
    alone, within = model(part, tokens(), width), model(full, tokens(), ONE)
    torch.testing.assert_close(alone, within, rtol=0, atol=1e-12)
    assert alone.std() > 0


def places_of(model: Model, width: Fraction, how: str) -> Any:
    if how == "leading":
        return leading_places(model, width)
    if how == "rolling":
        return rolling_places(model, width, 5, CPU)
    g = torch.Generator().manual_seed(2)
    shapes, known = model.shapes(width), channels(model)
    kept = {n: shapes[f"{n}.weight"][n in model.tables] // known.units[n] for n in known.layers}
    chosen = {n: torch.randperm(known.sizes[n], generator=g)[:k].sort().values for n, k in kept.items()}
    return chosen_places(model, width, chosen)


@pytest.mark.parametrize("how", ["leading", "rolling", "chosen"])
@given(options=RECURRENT, width=st.sampled_from([QUARTER, HALF, Fraction(3, 4)]))
@settings(max_examples=12, deadline=None)
def test_a_slice_of_a_recurrent_network_computes_what_it_computes_alone(
    how: str, options: dict[str, Any], width: Fraction
) -> None:
    """Gates of a channel that is not held are σ(0) and tanh(0): its output is zero, as if it were not there."""
    model = of(lambda w: Recurrent(width=w, **options))
    assert_alone(model, places_of(model, width, how), width)


@pytest.mark.parametrize("how", ["leading", "rolling", "chosen"])
@given(options=ATTENTION, width=st.sampled_from([HALF, QUARTER]), drop=st.booleans())
@settings(max_examples=12, deadline=None)
def test_a_slice_of_a_transformer_computes_what_it_computes_alone(
    how: str, options: dict[str, Any], width: Fraction, drop: bool
) -> None:
    if drop:  # whole heads: as many as there are widths
        options = options | {"heads": 4}
    model = of(lambda w: Transformer(w, drop_heads=drop, **options))
    scale = 1.0 if drop else float(1 / width) ** 0.5
    assert_alone(model, places_of(model, width, how), width, scale)


@pytest.mark.parametrize("how", ["leading", "rolling", "chosen"])
def test_a_projected_lstm(how: str) -> None:
    model = of(partial(recurrent_with_projection))
    assert_alone(model, places_of(model, HALF, how), HALF)


@pytest.mark.parametrize("how", ["leading", "rolling", "chosen"])
def test_scores_of_positions(how: str) -> None:
    """They do not hide that the head reads two directions."""
    model = of(pooled)
    assert model.blocks.orders["head.weight"] == (1, 2)
    assert_alone(model, places_of(model, HALF, how), HALF)


@pytest.mark.parametrize("how", ["leading", "rolling", "chosen"])
def test_convolutions_side_by_side(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "group_norm", lambda x, groups, w, b, eps: x * w[:, None] + b[:, None])
    model = of(branches)
    found = {k: model.blocks.orders.get(k) for k in ("norm.weight", "late.1.weight", "head.weight")}
    assert found == {"norm.weight": (2,), "late.1.weight": (1, 2), "head.weight": (1, 3)}
    assert_alone(model, places_of(model, HALF, how), HALF)


class Beside(nn.Module):
    """Two embeddings of several sizes, side by side."""

    def __init__(self, width: float) -> None:
        super().__init__()
        sizes = int(16 * width), int(8 * width)
        self.tables = nn.ModuleList(nn.Embedding(TOKENS, n) for n in sizes)
        self.mix, self.head = nn.Linear(sum(sizes), sizes[0]), nn.Linear(sizes[0], 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(torch.cat([t(x) for t in self.tables], -1)).relu().mean(1))


@pytest.mark.parametrize(
    ("factory", "before"), [(Beside, "mix.weight"), (partial(Branches, parts=(16, 8)), "norm.weight")]
)
def test_parts_of_several_sizes_are_refused_where_clients_are_narrow(
    factory: Callable[..., nn.Module], before: str
) -> None:
    model = of(factory)
    model.check(ONE)
    with pytest.raises(UserError, match=f"model 'test' concatenates parts of several sizes before '{before}', so"):
        model.check(QUARTER)


def recurrent_with_projection(width: float) -> nn.Module:
    return Recurrent(nn.LSTM, width, num_layers=2, bidirectional=True, proj_size=8)


@pytest.mark.parametrize("factory", [lstm, gru, transformer], ids=["lstm", "gru", "transformer"])
def test_recovered_weights_are_leading_slices(factory: Callable[..., nn.Module]) -> None:
    model = of(factory)
    layout = take_apart(model, QUARTER)
    g = torch.Generator().manual_seed(0)
    u = {p.name: torch.randn(p.u_shape, generator=g, dtype=torch.float64) for p in layout.layers}
    v = {p.name: torch.randn(p.v_shape(), generator=g, dtype=torch.float64) for p in layout.layers}
    full = layout.weights(u, v)
    for width in (QUARTER, HALF, Fraction(3, 4)):
        own = {k: v[k][tuple(slice(n) for n in s)] for k, s in layout.v_shapes(width).items()}
        for k, w in layout.weights(u, own).items():
            assert w.shape == model.shapes(width)[k]
            torch.testing.assert_close(w, full[k][tuple(slice(n) for n in w.shape)], rtol=0, atol=1e-12)


def test_a_score_for_each_position_is_not_decomposed() -> None:
    layout = take_apart(of(pooled), QUARTER)
    assert {"score.weight", "score.bias", "embedding.weight"} <= set(layout.plain)
    assert len(layout.layers) == 4 * 2 * 2


@pytest.mark.parametrize("factory", [lstm, gru, transformer], ids=["lstm", "gru", "transformer"])
def test_the_network_is_the_users_own(factory: Callable[..., nn.Module]) -> None:
    """Splitting and stacking again gives the same function."""
    model, own = of(factory), factory(0.5).double()
    params = {k: v.detach() for k, v in model._split(own).items()}
    torch.testing.assert_close(model(params, tokens(), HALF), own(tokens()), rtol=0, atol=1e-14)


def test_names_and_groups() -> None:
    found = channels(of(lstm))
    forward = tuple(f"rnn.{kind}_l0.{gate}" for kind in ("ih", "hh") for gate in "ifgo")
    assert found.layers["embedding"] == ("embedding",)
    assert found.layers["rnn.ih_l0.i"] == (*forward, *(n.replace("l0", "l0_reverse") for n in forward))
    assert found.dims["rnn.ih_l1.f.weight"] == ("rnn.ih_l1.i", "rnn.ih_l0.i")
    assert found.dims["norm.weight"] == ("rnn.ih_l1.i",)
    attentive = channels(of(transformer))
    q = "encoder.layers.0.self_attn.q"
    assert (attentive.sizes[q], attentive.units[q]) == (16, 2)
    stream = [f"encoder.layers.{i}.{n}" for i in (0, 1) for n in ("self_attn.out_proj", "linear2")]
    assert attentive.layers["embedding"] == ("embedding", *stream)
    assert attentive.dims["position"] == (None, None, "embedding")


def test_costs_are_those_of_the_counter() -> None:
    """An LSTM's four gates, twice the hidden size for 6 steps of 3 rows; attention as products of matrices."""
    model = Model(gru, "gru", (LENGTH,), 4)
    params = {k: v.to("meta") for k, v in model.init(HALF, 0).items()}
    x = torch.zeros(3, LENGTH, dtype=torch.int64, device="meta")
    assert count_of(lambda: model(params, x, HALF)) == 3 * LENGTH * 3 * 2 * 8 * 8 + 3 * 8 * 4
    model = of(transformer)
    params = {k: v.to("meta") for k, v in model.init(HALF, 0).items()}
    rows, e = 3 * (LENGTH + 1), 16
    layer = rows * (4 * e * e + 2 * e * 2 * e) + 2 * rows * (LENGTH + 1) * e
    assert count_of(lambda: model(params, x, HALF)) == 2 * layer + 3 * e * 4


def test_whole_numbers_that_are_measured_and_others_that_are_tokens() -> None:
    measured = Model(lambda w: nn.Sequential(nn.Linear(6, int(8 * w)), nn.Linear(int(8 * w), 4)), "mlp", (6,), 4)
    assert not measured.whole_numbers
    assert measured(measured.init(ONE, 0), torch.ones(2, 6, dtype=torch.int64), ONE).dtype == torch.float32
    model = of(gru)
    assert model.whole_numbers
    with pytest.raises(ValueError, match=r"takes whole numbers \(tokens\), and the data has others: save x as int64"):
        model(model.init(ONE, 0), tokens().float(), ONE)
