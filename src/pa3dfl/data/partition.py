"""The rows of each client: i.i.d., Dirichlet label skew, a few classes each, or the data's own owners."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.names import PARTITIONS
from pa3dfl.core.randomness import numpy_generator
from pa3dfl.core.words import counted
from pa3dfl.data.arrays import TEST, TRAIN, VAL


@dataclass(frozen=True)
class Split:
    """Row numbers of one client's training, validation and test data."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


def partition(
    kind: str, y: np.ndarray, owner: np.ndarray | None, clients: int, seed: int, alpha: float, classes_per_client: int
) -> list[np.ndarray]:
    """Row numbers of each client. Every row goes to exactly one client, except leftovers of `classes`."""
    rng = numpy_generator(seed, "partition")
    if kind == "natural":
        if owner is None:
            raise UserError("partition 'natural' needs data with a client column: this data has none; use iid")
        present = int(owner.max()) + 1
        if present != clients:
            raise UserError(f"partition 'natural': the data has {counted(present, 'client')}; say --clients {present}")
        # In the order of the data: an owner on another machine, with its own rows only, must split them alike.
        return [np.flatnonzero(owner == i) for i in range(clients)]
    if kind == "iid":
        return np.array_split(rng.permutation(len(y)), clients)
    if kind == "dirichlet":
        return _cut(y, _dirichlet_shares(y, clients, alpha, rng), rng)
    if kind == "classes":
        return _cut(y, _dealt_shares(int(y.max()) + 1, clients, classes_per_client, rng), rng)
    raise UserError(f"unknown partition {kind!r}: expected one of {', '.join(PARTITIONS)}")


RECENT = 1024  # splits in the cache


class Splits(Sequence[Split]):
    """The split of each client's rows, made on demand: of many clients, most are never sampled.

    `part` assigns each row of the data to training, validation or test; None: at random.
    """

    def __init__(self, rows: Sequence[np.ndarray], seed: int, part: np.ndarray | None = None) -> None:
        self.rows, self.seed, self.part = rows, seed, part
        self._recent: dict[int, Split] = {}
        for i, mine in enumerate(rows):
            _check_size(i, mine)
            if part is not None:
                _check_parts(i, part[mine])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(i)
        found = self._recent.get(i)
        if found is None:
            if len(self._recent) >= RECENT:
                self._recent.clear()
            self._recent[i] = found = split_one(i, self.rows[i], self.seed, self.part)
        return found

    def trained(self, i: int) -> int:
        """How many rows a client trains on."""
        if self.part is not None:
            return len(self[i].train)
        return len(self.rows[i]) - 2 * _held_out(self.rows[i])


def split_one(client: int, rows: np.ndarray, seed: int, part: np.ndarray | None = None) -> Split:
    """0.8 / 0.1 / 0.1 of a client's rows at random, unstratified, or by the data's own parts."""
    _check_size(client, rows)
    rows = numpy_generator(seed, "split", client).permutation(rows)
    if part is not None:
        train, val, test = (rows[part[rows] == which] for which in (TRAIN, VAL, TEST))
        if not len(val):
            held_out = _held_out(train)
            train, val = train[held_out:], train[:held_out]
        return Split(train, val, test)
    held_out = _held_out(rows)
    return Split(*np.split(rows, [len(rows) - 2 * held_out, len(rows) - held_out]))


def _held_out(rows: np.ndarray) -> int:
    """How many of a client's rows are for validation; as many others are for its test."""
    return max(1, len(rows) // 10)


def _check_size(client: int, rows: np.ndarray) -> None:
    if len(rows) < 3:
        raise UserError(
            f"client {client} would own {counted(len(rows), 'row')}: at least 3 are needed to train, validate and test;"
            " use fewer --clients or a milder --partition"
        )


def _check_parts(client: int, part: np.ndarray) -> None:
    given = np.bincount(part, minlength=3)
    if not given[TEST] or given[TRAIN] + given[VAL] < 2:
        raise UserError(
            f"client {client} has {counted(given[TRAIN] + given[VAL], 'row')} to train and {given[TEST]} to test: "
            "at least 2 and 1 are needed; remove the client, or move rows"
        )


def label_counts(rows: list[np.ndarray], y: np.ndarray, classes: int) -> np.ndarray:
    """(clients, classes): how many rows of each label each client owns."""
    return np.stack([np.bincount(y[mine], minlength=classes) for mine in rows])


def _dirichlet_shares(y: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """(clients, classes): shares of each class, so that labels of a client ~ Dirichlet(α·p*), sizes alike.

    p* is the normalised label distribution. The draws are balanced by alternately rescaling rows and
    columns (Sinkhorn), which spreads the unavoidable correction over all clients instead of leaving the
    last ones with what remains.
    """
    labels = np.bincount(y) / len(y)
    present = labels > 0
    shares = np.zeros((clients, len(labels)))
    shares[:, present] = rng.dirichlet(alpha * labels[present], size=clients)
    shares = np.maximum(shares, 1e-9) * present
    for _ in range(1000):
        shares /= shares.sum(1, keepdims=True)
        shares *= labels / np.maximum(shares.sum(0), 1e-12)
    return shares


def _dealt_shares(classes: int, clients: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """(clients, classes): every client holds `each` classes, and all classes have equally many owners (±1)."""
    if not 1 <= each <= classes:
        raise UserError(f"classes_per_client is {each}: expected 1 to {classes}, the number of classes")
    owns = np.zeros((clients, classes))
    for i in range(clients):
        # The classes with fewest owners so far, ties at random: a shuffled deck, dealt again and again.
        order = np.lexsort((rng.random(classes), owns.sum(0)))
        owns[i, order[:each]] = 1
    return owns


def _cut(y: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Cut the shuffled rows of each class in proportion to the shares in its column."""
    mine: list[list[np.ndarray]] = [[] for _ in shares]
    for c in range(shares.shape[1]):
        rows = rng.permutation(np.flatnonzero(y == c))
        total = shares[:, c].sum()
        if total == 0:
            continue
        ends = np.rint(np.cumsum(shares[:, c]) / total * len(rows)).astype(int)
        for i, part in enumerate(np.split(rows, ends[:-1])):
            mine[i].append(part)
    return [rng.permutation(np.concatenate(parts)) for parts in mine]
