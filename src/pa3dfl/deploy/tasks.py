"""Tasks whose data is on other machines: the server knows sizes, a node has its own rows, both build one model."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.capacity import width_of
from pa3dfl.core.options.config import Config
from pa3dfl.core.words import counted
from pa3dfl.data import Arrays, FederatedData, Split, mean_and_std, scaled, split_one
from pa3dfl.data.federated import STATISTICS
from pa3dfl.methods import Method
from pa3dfl.methods.assembly import device_of, dtypes_of, known, make_method, make_model, rules
from pa3dfl.methods.problem import Client, Task

Sizes = tuple[int, int, int]
NOBODY: Sizes = (0, 0, 0)


@dataclass(frozen=True)
class Common:
    """Facts about the data that all nodes share; sent to every node with every order."""

    shape: tuple[int, ...]
    classes: int
    mean: list[float] | None
    std: list[float] | None

    def facts(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "classes": self.classes, "mean": self.mean, "std": self.std}

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Common":
        return cls(tuple(facts["shape"]), facts["classes"], facts["mean"], facts["std"])


def agree(data: str, shape: tuple[int, ...], classes: int, images: bool, histograms: list[np.ndarray]) -> Common:
    """Use the statistics of a known data set; otherwise compute them from histograms, exactly as on one machine."""
    if not images:
        return Common(shape, classes, None, None)
    if data in STATISTICS:
        mean, std = (torch.tensor(t) for t in STATISTICS[data])
        if len(mean) != shape[0]:
            raise UserError(
                f"nodes have images of {counted(shape[0], 'channel')}, {data} has {len(mean)}: set data in config.yaml"
            )
    else:
        mean, std = mean_and_std(np.sum(histograms, 0))
    return Common(shape, classes, mean.tolist(), std.tolist())


@dataclass(frozen=True, eq=False)
class RemoteData(FederatedData):
    """Data on other machines, of which the server knows the sizes that nodes declared."""

    declared: Sequence[Sizes] = ()

    def sizes(self, client: int) -> Sizes:
        return self.declared[client]


def slot_widths(method: Method, shares: Sequence[Fraction | None], p_min: Fraction) -> list[Fraction]:
    """The widths of all clients; a free client number counts as the weakest client that is present."""
    affordable = [None if r is None else width_of(r, p_min) for r in shares]
    weakest = min(w for w in affordable if w is not None)
    return method.widths([weakest if w is None else w for w in affordable], p_min)


def server_task(
    config: Config, common: Common, shares: Sequence[Fraction | None], sizes: Sequence[Sizes], names: Sequence[str]
) -> Task:
    method, p_min = make_method(config), config.narrowest()
    widths = slot_widths(method, shares, p_min)
    clients = [
        Client(i, r or widths[i] ** 2, widths[i], sizes[i][0] if r is not None else 0, names[i])
        for i, r in enumerate(shares)
    ]
    device = device_of(config.device)
    nothing = [_no_rows() for _ in clients]
    x, y = torch.empty(0, *common.shape, device=device), torch.empty(0, dtype=torch.int64, device=device)
    data = RemoteData(
        x, y, nothing, common.classes, *_normal(common, device), bool(config.augment), declared=list(sizes)
    )
    return _task(config, method, common, clients, data, device)


def node_task(
    config: Config, common: Common, arrays: Arrays, client: int, widths: Sequence[Fraction], r: Fraction
) -> Task:
    """The task on the node of one client: its own rows, and the widths of all clients."""
    check_rows(arrays, common)
    device = device_of(config.device)
    mine = split_one(client, np.arange(len(arrays.y)), config.seed)
    splits = [mine if i == client else _no_rows() for i in range(len(widths))]
    clients = [
        Client(i, r if i == client else w**2, w, len(mine.train) if i == client else 0) for i, w in enumerate(widths)
    ]
    x, y = torch.from_numpy(arrays.x).to(device), torch.from_numpy(arrays.y).to(device)
    data = FederatedData(x, y, splits, common.classes, *_normal(common, device), bool(config.augment))
    return _task(config, make_method(config), common, clients, data, device)


def check_rows(arrays: Arrays, common: Common) -> None:
    if arrays.x.shape[1:] != common.shape or (arrays.x.dtype == np.uint8) != (common.mean is not None):
        raise UserError(
            f"this node's rows have shape {arrays.x.shape[1:]} and type {arrays.x.dtype}: the federation's have "
            f"shape {common.shape} and are {'bytes' if common.mean is not None else 'floats'}"
        )
    if arrays.classes > common.classes:
        raise UserError(f"this node has the label {arrays.classes - 1}: the federation has 0..{common.classes - 1}")


def _normal(common: Common, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    def on(values: list[float] | None) -> torch.Tensor | None:
        return None if values is None else scaled(torch.tensor(values), len(common.shape) + 1, device)

    return on(common.mean), on(common.std)


def _no_rows() -> Split:
    rows = np.empty(0, np.int64)
    return Split(rows, rows, rows)


def _task(
    config: Config, method: Method, common: Common, clients: list[Client], data: FederatedData, device: torch.device
) -> Task:
    p_min = config.narrowest()
    model = make_model(known(config.model), method, common.shape, common.classes, p_min, config.init)
    for width in sorted({c.width for c in clients}):
        model.shapes(width)
    dtype, compute = dtypes_of(config)
    return Task(model, p_min, config.seed, device, data, clients, rules(config), dtype=dtype, compute=compute)
