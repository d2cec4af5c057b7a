"""Networks for text, sensors and tables. Hidden sizes are multiples of 16, so that sixteenths are whole.

Zeros at the end of a text or of a signal are padding: no output depends on how many there are.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Tokens are bytes, or the classes if there are more.
VOCABULARY = 256


class LSTMText(nn.Module):
    """Two recurrent layers over tokens; the head reads the output at the last token."""

    def __init__(self, width: float, num_classes: int) -> None:
        super().__init__()
        h = int(128 * width)
        self.embedding = nn.Embedding(max(VOCABULARY, num_classes), h)
        self.lstm = nn.LSTM(h, h, 2, batch_first=True)
        self.head = nn.Linear(h, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lstm(self.embedding(x))[0]
        last = (lengths(x) - 1)[:, None, None].expand(-1, 1, h.shape[2])
        out: Tensor = self.head(h.gather(1, last)[:, 0])
        return out


def lengths(x: Tensor) -> Tensor:
    """How many positions of each row (rows, …, positions) there are up to the last that is not zero; at least one."""
    # Not len(x): a program of `torch.export` would then take this number of rows only.
    there = (x != 0).reshape(x.shape[0], -1, x.shape[-1]).any(1)
    place = torch.arange(1, x.shape[-1] + 1, device=x.device)
    return (there * place).amax(1).clamp(min=1)


class Transformer(nn.Module):
    """A transformer over the output of `first` (rows, positions, features), with learned positions.

    The head reads the mean over the positions. Each position covers `piece` time steps of the input; None: the input
    has no padding.
    """

    def __init__(
        self, first: nn.Module, positions: int, e: int, depth: int, num_classes: int, piece: int | None = None
    ) -> None:
        super().__init__()
        self.first, self.piece = first, piece
        self.position = nn.Parameter(0.02 * torch.randn(1, positions, e))
        layer = nn.TransformerEncoderLayer(e, 4, 2 * e, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(e), enable_nested_tensor=False)
        self.head = nn.Linear(e, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.position[:, : h.shape[1]]
        out: Tensor
        if self.piece is None:
            out = self.head(self.encoder(h).mean(1))
            return out
        n = (lengths(x)[:, None] + self.piece - 1) // self.piece
        padding = torch.arange(h.shape[1], device=x.device) >= n
        h = self.encoder(h, src_key_padding_mask=padding).masked_fill(padding[..., None], 0.0)
        out = self.head(h.sum(1) / n.clamp(max=h.shape[1]))
        return out


class Patches(nn.Module):
    """The output of a convolution over pieces of an image or of a signal, as a sequence."""

    def __init__(self, project: nn.Module) -> None:
        super().__init__()
        self.project = project

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(x).flatten(2).transpose(1, 2)
        return out


class Sensors(nn.Module):
    """One-dimensional convolutions over time."""

    def __init__(self, width: float, channels: int, num_classes: int) -> None:
        super().__init__()
        a, b = int(64 * width), int(128 * width)
        self.first, self.second = nn.Conv1d(channels, a, 5, padding=2), nn.Conv1d(a, b, 5, padding=2)
        self.pool = nn.MaxPool1d(2, ceil_mode=True)
        self.mix = nn.Linear(4 * b, b)
        self.head = nn.Linear(b, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        n = lengths(x)[:, None]
        h = self.pool(_cut(F.relu(self.first(x)), n))
        n = (n + 1) // 2
        h = _quarters(_cut(F.relu(self.second(h)), n), n)
        out: Tensor = self.head(F.relu(self.mix(h.flatten(1))))
        return out


def _cut(h: Tensor, n: Tensor) -> Tensor:
    """Zero after the first n steps."""
    return h.masked_fill((torch.arange(h.shape[2], device=h.device) >= n)[:, None], 0.0)


def _quarters(h: Tensor, n: Tensor) -> Tensor:
    """The mean of each quarter of the first n steps, which are cut as by `nn.AdaptiveAvgPool1d(4)`."""
    quarter, step = torch.arange(4, device=h.device), torch.arange(h.shape[2], device=h.device)
    start, end = quarter * n // 4, ((quarter + 1) * n + 3) // 4
    within = (step >= start[..., None]) & (step < end[..., None])
    share = within.to(h.dtype) / (end - start)[..., None]
    return h @ share.transpose(1, 2)


def lstm_text(width: float, input_shape: tuple[int, ...] = (80,), num_classes: int = 80) -> nn.Module:
    _expect(input_shape, 1, "tokens (positions)")
    return LSTMText(width, num_classes)


def transformer_text(width: float, input_shape: tuple[int, ...] = (80,), num_classes: int = 80) -> nn.Module:
    _expect(input_shape, 1, "tokens (positions)")
    e = int(128 * width)
    return Transformer(nn.Embedding(max(VOCABULARY, num_classes), e), input_shape[0], e, 2, num_classes, 1)


def transformer_sensor(width: float, input_shape: tuple[int, ...] = (6, 128), num_classes: int = 12) -> nn.Module:
    """Eight steps are one position."""
    _expect(input_shape, 2, "sensors (channels, time steps)")
    e, (channels, steps) = int(64 * width), input_shape
    piece = min(8, steps)
    return Transformer(Patches(nn.Conv1d(channels, e, piece, piece)), steps // piece, e, 2, num_classes, piece)


def cnn_sensor(width: float, input_shape: tuple[int, ...] = (6, 128), num_classes: int = 12) -> nn.Module:
    _expect(input_shape, 2, "sensors (channels, time steps)")
    return Sensors(width, input_shape[0], num_classes)


def vit_small(width: float, input_shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 10) -> nn.Module:
    _expect(input_shape, 3, "images (channels, height, width)")
    e, (channels, height, broad) = int(128 * width), input_shape
    side = min(4, height, broad)
    return Transformer(
        Patches(nn.Conv2d(channels, e, side, side)), (height // side) * (broad // side), e, 4, num_classes
    )


def mlp_tabular(width: float, input_shape: tuple[int, ...] = (16,), num_classes: int = 2) -> nn.Module:
    _expect(input_shape, 1, "a row of numbers")
    a, b = int(256 * width), int(128 * width)
    layers = OrderedDict(first=nn.Linear(input_shape[0], a), relu1=nn.ReLU(), second=nn.Linear(a, b), relu2=nn.ReLU())
    return nn.Sequential(layers | {"head": nn.Linear(b, num_classes)})


def _expect(shape: tuple[int, ...], dimensions: int, what: str) -> None:
    if len(shape) != dimensions:
        raise ValueError(f"it needs {what}, and the data has {shape}")
