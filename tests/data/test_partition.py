"""Who owns which rows."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.names import PARTITIONS as KINDS
from pa3dfl.data.partition import Splits, label_counts, partition


def cut(
    kind: str,
    y: np.ndarray,
    clients: int,
    seed: int = 0,
    alpha: float = 1.0,
    each: int = 2,
    owner: np.ndarray | None = None,
) -> list[np.ndarray]:
    return partition(kind, y, owner, clients, seed, alpha, each)


def labels(rows: int = 1000, classes: int = 10) -> np.ndarray:
    return np.arange(rows) % classes


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.integers(1, 8),
    st.sampled_from([0.01, 1.0, 100.0]),
    st.integers(0, 3),
)
def test_every_row_has_one_owner(kind: str, y: list[int], clients: int, alpha: float, seed: int) -> None:
    """Some labels may occur nowhere, some clients may get nothing. With all classes each, nothing is left over."""
    y = np.array(y)
    owner = np.arange(len(y)) % clients
    owner[-1] = clients - 1
    parts = cut(kind, y, clients, seed, alpha, int(y.max()) + 1, owner)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "natural"])
def test_partitions_follow_the_seed(kind: str) -> None:
    y, owner = labels(), np.arange(1000) % 7
    one, again, other = ([p.tolist() for p in cut(kind, y, 7, seed, owner=owner)] for seed in (3, 3, 4))
    assert one == again
    assert one != other


def test_iid_distributes_shuffled_rows_evenly() -> None:
    parts = cut("iid", labels(), 7)
    assert sorted(map(len, parts)) == [142, 143, 143, 143, 143, 143, 143]
    assert parts[0].tolist() != sorted(parts[0])
    assert label_counts(parts, labels(), 10).min() > 4


def test_dirichlet_keeps_sizes_alike_and_alpha_sets_the_skew() -> None:
    y, largest = labels(10_000), {}
    for alpha in (0.1, 1.0, 10.0, 1e4):
        counts = label_counts(cut("dirichlet", y, 20, alpha=alpha), y, 10)
        assert np.abs(counts.sum(1) - 500).max() <= 25
        assert (counts.sum(0) == 1000).all()
        largest[alpha] = (counts.max(1) / counts.sum(1)).mean()
    assert largest[0.1] > 0.8 > largest[1.0] > 0.45 > largest[10.0] > 0.15
    assert largest[1e4] == pytest.approx(0.1, abs=0.01)


def test_dirichlet_follows_the_label_distribution() -> None:
    """Dirichlet(α·p*): a label that is nine times as frequent is so within clients too."""
    y = (np.arange(10_000) % 10 == 0).astype(np.int64)
    counts = label_counts(cut("dirichlet", y, 10, alpha=1e5), y, 2)
    assert np.abs(counts[:, 1] / counts.sum(1) - 0.1).max() < 0.01


@pytest.mark.parametrize("alpha", [1e-320, 1e-300, 1e300])
def test_extreme_alphas_still_place_every_row(alpha: float) -> None:
    parts = cut("dirichlet", labels(100, 4), 6, alpha=alpha)
    assert sorted(np.concatenate(parts).tolist()) == list(range(100))


def test_classes_have_equally_many_owners() -> None:
    y = labels(3000, 10)
    counts = label_counts(cut("classes", y, 17, each=3), y, 10)
    assert ((counts > 0).sum(1) == 3).all()
    assert sorted((counts > 0).sum(0).tolist()) == [5] * 9 + [6]  # 51 = 17 × 3 owners
    assert counts.sum() == 3000
    held = counts[counts > 0]
    assert held.min() >= 50
    assert held.max() <= 60


def test_classes_without_an_owner_are_left_over() -> None:
    y = labels(100, 10)
    counts = label_counts(cut("classes", y, 2, each=3), y, 10)
    assert sorted(counts.sum(0).tolist()) == [0] * 4 + [10] * 6


@pytest.mark.parametrize("each", [0, 11])
def test_classes_per_client_out_of_bounds_is_refused(each: int) -> None:
    with pytest.raises(UserError, match=f"^classes_per_client is {each}: expected 1 to 10, the number of classes"):
        cut("classes", labels(), 5, each=each)


def test_natural_owners_are_kept() -> None:
    owner = np.array([2, 0, 1, 2, 2, 0])
    parts = cut("natural", labels(6), 3, owner=owner)
    assert [sorted(p.tolist()) for p in parts] == [[1, 5], [2], [0, 3, 4]]


def test_natural_needs_owners_and_as_many_clients() -> None:
    with pytest.raises(
        UserError, match=r"^partition 'natural' needs data with a client column: this data has none; use iid"
    ):
        cut("natural", labels(), 5)
    with pytest.raises(UserError, match=r"the data has 3 clients; say --clients 3$"):
        cut("natural", labels(6), 5, owner=np.array([2, 0, 1, 2, 2, 0]))


def test_unknown_partition_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^unknown partition 'random': expected one of iid, dirichlet, classes, natural"
    ):
        cut("random", labels(), 5)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(3, (1, 1, 1)), (9, (7, 1, 1)), (10, (8, 1, 1)), (29, (25, 2, 2)), (100, (80, 10, 10)), (600, (480, 60, 60))],
)
def test_split_sizes(rows: int, sizes: tuple[int, int, int]) -> None:
    [s] = Splits([np.arange(rows) + 5], 0)
    assert (len(s.train), len(s.val), len(s.test)) == sizes
    assert sorted(np.concatenate([s.train, s.val, s.test]).tolist()) == list(range(5, rows + 5))
    if rows > 3:
        assert np.concatenate([s.train, s.val, s.test]).tolist() != list(range(5, rows + 5))


def test_split_of_a_client_depends_on_the_seed_and_its_own_rows() -> None:
    rows = np.arange(100, 200)
    with_some, with_others = Splits([np.arange(50), rows], 0)[1], Splits([np.arange(30), rows], 0)[1]
    assert with_some.test.tolist() == with_others.test.tolist()
    assert with_some.test.tolist() != Splits([np.arange(50), rows], 1)[1].test.tolist()
    assert with_some.test.tolist() != Splits([rows], 0)[0].test.tolist()


@pytest.mark.parametrize("n", [0, 2])
def test_split_needs_three_rows(n: int) -> None:
    with pytest.raises(UserError, match=f"^client 1 would own {n} rows: at least 3 are needed .* use fewer --clients"):
        Splits([np.arange(10), np.arange(n)], 0)


def test_cached_splits_equal_recomputed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[Splits.__module__], "RECENT", 2)
    splits = Splits([np.arange(10) + 10 * i for i in range(4)], seed=0)
    first = [splits[i].train.tolist() for i in range(4)]
    assert [splits[i].train.tolist() for i in (3, 3, 2, 1, 0)] == [first[i] for i in (3, 3, 2, 1, 0)]
    assert splits[0] is splits[0]
    assert len(splits._recent) <= 2


def test_sizes_of_splits_are_known_without_making_them() -> None:
    splits = Splits([np.arange(n) for n in (3, 29, 100)], 0)
    assert [splits.trained(i) for i in range(3)] == [len(s.train) for s in splits] == [1, 25, 80]
    assert np.array_equal(splits[1].train, splits[1].train)
    with pytest.raises(IndexError):
        splits[3]


def test_label_counts_by_hand() -> None:
    y = np.array([0, 2, 2, 1, 0])
    assert label_counts([np.array([0, 1, 2]), np.array([3, 4]), np.array([], int)], y, 4).tolist() == [
        [1, 0, 2, 0],
        [1, 1, 0, 0],
        [0, 0, 0, 0],
    ]
