"""The federation's data as tensors: one store of raw rows, and the rows of each client."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.data.arrays import Arrays
from pa3dfl.data.partition import Split

# The usual channel means and deviations (McMahan et al., FLGo); both CIFARs share one pair.
_CIFAR = ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262))
_FASHION = ((0.2859,), (0.3530,))
STATISTICS = {"cifar10": _CIFAR, "cifar100": _CIFAR, "fashion-mnist": _FASHION, "fashion-mnist-10k": _FASHION}
PADDING = 4


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Rows stay as they were stored (a quarter of the memory of floats) and are normalised per batch."""

    x: Tensor
    y: Tensor
    splits: Sequence[Split]
    classes: int
    mean: Tensor | None
    std: Tensor | None
    augment: bool
    layout: torch.memory_format = torch.contiguous_format
    """The memory format of images; the outputs of convolutions have the same."""
    device: torch.device | None = None
    """Where batches go; None: where the rows are."""

    @property
    def travels(self) -> bool:
        """Whether the rows are on another device than the batches."""
        return self.device is not None and self.device.type != self.x.device.type

    @property
    def measured(self) -> bool:
        """Whether rows become floats. Whole numbers other than bytes may be tokens and stay unchanged."""
        return self.mean is not None or self.x.is_floating_point() or self.x.dtype == torch.uint8

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def rows(self, client: int, part: str) -> Tensor:
        """Row numbers of a client's `train`, `val` or `test` data."""
        return torch.from_numpy(getattr(self.splits[client], part))

    def sizes(self, client: int) -> tuple[int, int, int]:
        """How many rows a client has to train, validate and test."""
        s = self.splits[client]
        return len(s.train), len(s.val), len(s.test)

    def batch(self, rows: Tensor, crops: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs and labels; `crops` holds (dy, dx, flip) for each row, see `draw_crops`."""
        x, y = self.raw(rows, crops)
        return self.normalised(x, dtype), y

    def raw(self, rows: Tensor, crops: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs as they were stored, augmented, and labels."""
        rows = rows.to(self.x.device)
        device = self.device or self.x.device
        x, y = (taken(t, rows).to(device) for t in (self.x, self.y))
        return x if crops is None else crop_and_flip(x, crops.to(device)), y

    def normalised(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if not self.measured:
            return x
        # A copy: images of one channel fit both layouts, and only a copy gets the strides of the wanted one.
        x = x.to(dtype, copy=True, memory_format=self.layout if x.ndim == 4 else torch.contiguous_format)
        if self.mean is not None and self.std is not None:
            x.sub_(self.mean.to(dtype)).div_(self.std.to(dtype))
        return x

    def draw_crops(self, n: int, generator: torch.Generator) -> Tensor | None:
        if not self.augment:
            return None
        shifts = torch.randint(0, 2 * PADDING + 1, (n, 2), generator=generator)
        return torch.cat([shifts, torch.randint(0, 2, (n, 1), generator=generator)], 1)


def taken(t: Tensor, rows: Tensor) -> Tensor:
    """A copy of some rows in the fastest way: on a CPU, t[rows] copies one number at a time."""
    return t.index_select(0, rows) if t.device.type == "cpu" else t[rows]


def crop_and_flip(x: Tensor, crops: Tensor) -> Tensor:
    """Random crop of the zero-padded image and horizontal flip, as one gather."""
    n, c, h, w = x.shape
    dy, dx, flip = crops.unbind(1)
    columns = torch.arange(w, device=x.device)
    columns = torch.where(flip[:, None] == 1, columns.flip(0), columns) + dx[:, None]
    lines = torch.arange(h, device=x.device) + dy[:, None]
    index = (lines[:, :, None] * (w + 2 * PADDING) + columns[:, None, :]).view(n, 1, h * w)
    padded = F.pad(x, (PADDING,) * 4).view(n, c, -1)
    return padded.gather(2, index.expand(n, c, h * w)).view(n, c, h, w)


def federate(
    arrays: Arrays, name: str, splits: Sequence[Split], augment: bool, device: torch.device,
    layout: torch.memory_format = torch.contiguous_format, newcomers: Collection[int] = (),
) -> FederatedData:  # fmt: skip
    """Builds the data of a federation. The statistics for normalisation leave out the rows of newcomers."""
    mean = std = None
    if arrays.x.dtype == np.uint8:
        known = np.ones(len(arrays.x), bool)
        for i in newcomers:
            known[np.concatenate([splits[i].train, splits[i].val, splits[i].test])] = False
        statistics = _statistics(arrays.x[known] if newcomers else arrays.x, name)
        mean, std = (scaled(t, arrays.x.ndim, device) for t in statistics)
    # A large data set stays in the host's memory, so that the GPU has memory for training; batches are copied.
    near = device.type != "cuda" or 2 * arrays.x.nbytes <= torch.cuda.mem_get_info(device)[0]
    x, y = (torch.from_numpy(a).to(device if near else "cpu") for a in (arrays.x, arrays.y))
    return FederatedData(x, y, splits, arrays.classes, mean, std, augment, layout, device)


def scaled(statistic: Tensor, ndim: int, device: torch.device) -> Tensor:
    """A channel statistic in units of bytes, shaped to broadcast over rows."""
    return 255 * statistic.to(device).view(1, -1, *[1] * (ndim - 2))


def _statistics(x: np.ndarray, name: str) -> tuple[Tensor, Tensor]:
    if name in STATISTICS:
        known_mean, known_std = STATISTICS[name]
        return torch.tensor(known_mean), torch.tensor(known_std)
    return mean_and_std(histogram(x))


def histogram(x: np.ndarray) -> np.ndarray:
    """(channels, 256): how often each byte occurs. Whole numbers: parts of the data add up to it exactly."""
    counts = [np.bincount(x[:, c].ravel(), minlength=256) for c in range(x.shape[1])]
    return np.stack(counts).astype(np.int64)


def mean_and_std(counts: np.ndarray) -> tuple[Tensor, Tensor]:
    """Of each channel's bytes, as shares of 255."""
    values = np.arange(256) / 255
    n = counts.sum(1)
    mean = counts @ values / n
    std = np.sqrt(np.maximum(counts @ values**2 / n - mean**2, 1e-6))
    return torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)
