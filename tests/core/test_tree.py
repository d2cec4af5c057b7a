"""Trees of tensors: copies, prefixes, mixtures and means."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pa3dfl.core.tree import count, leading, lerp, mean, nbytes, put, take, wire


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))


def test_wire_shares_nothing() -> None:
    source = {"a": tensor(4, 6).requires_grad_(), "b": tensor(4, 6).t(), "c": tensor(1).expand(3)}
    copy = wire(source)
    assert list(copy) == ["a", "b", "c"]
    for k, v in copy.items():
        assert torch.equal(v, source[k])
        assert v.is_contiguous()
        assert not v.requires_grad
        assert v.untyped_storage().data_ptr() != source[k].untyped_storage().data_ptr()
    assert copy["c"].untyped_storage().nbytes() == 24


def test_sizes() -> None:
    tree = {"a": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.float64), "c": torch.zeros(7, dtype=torch.uint8)}
    assert count(tree) == 18
    assert nbytes(tree) == 24 + 40 + 7
    assert nbytes({}) == count({}) == 0


@given(st.dictionaries(st.text("abu/.", max_size=4), st.integers(0, 9), max_size=5), st.sampled_from(["u/", "a", ""]))
def test_take_undoes_put(values: dict[str, int], prefix: str) -> None:
    tree = {k: torch.tensor(v) for k, v in values.items()}
    inside = put(prefix, tree)
    assert list(inside) == [prefix + k for k in tree]
    assert take(prefix, inside) == tree


def test_take_leaves_other_prefixes() -> None:
    tree = {k: torch.zeros(1) for k in ("u/a", "v/a", "u", "v/u/a", "u/")}
    assert list(take("u/", tree)) == ["a", ""]


def test_leading_is_a_view_of_the_first_entries() -> None:
    full = torch.arange(24.0).view(2, 3, 4)
    part = leading(full, (1, 2, 3))
    assert part.tolist() == [[[0, 1, 2], [4, 5, 6]]]
    part.fill_(-1)
    assert full[0, 1, 2] == -1
    assert full[0, 2, 0] == 8


def test_lerp_is_exact_at_its_ends_and_linear_between() -> None:
    a, b = {"w": torch.tensor([0.1, 1e8])}, {"w": torch.tensor([0.3, -1e-8])}
    assert torch.equal(lerp(a, b, 0.0)["w"], a["w"])
    assert torch.equal(lerp(a, b, 1.0)["w"], b["w"])
    assert lerp({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([3.0, 0.0])}, 0.25)["w"].tolist() == [1.5, 3.0]


def test_lerp_returns_a_new_tree_at_both_ends() -> None:
    a = {"w": torch.zeros(1)}
    lerp(a, a, 0.0)["new"] = torch.zeros(1)
    assert list(a) == ["w"]


def test_mean_by_hand() -> None:
    trees = [{"w": torch.tensor([x, 0.0])} for x in (1.0, 2.0, 6.0)]
    assert mean(trees)["w"].tolist() == pytest.approx([3.0, 0.0])
    assert mean(trees, [2, 1, 1])["w"].tolist() == pytest.approx([2.5, 0.0])
    assert mean(trees, [20, 10, 10])["w"].tolist() == pytest.approx([2.5, 0.0])
    assert [t["w"][0].item() for t in trees] == [1.0, 2.0, 6.0]  # none was written to


def test_the_mean_keeps_the_order() -> None:
    """In float32, 1e8 + 1 − 1e8 is 0 summed from the left, and 1 in another order."""
    big, one, less, none = ({"w": torch.tensor([x])} for x in (1e8, 1.0, -1e8, 0.0))
    assert mean([big, one, less, none])["w"].item() == 0.0
    assert mean([big, less, one, none])["w"].item() == 0.25
    with pytest.raises(ValueError, match="shorter"):
        mean([big, one, one], [1.0, 1.0])
