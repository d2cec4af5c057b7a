"""Networks for sequences as a user writes them, without anything from this package."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS, LENGTH = 12, 6


class Recurrent(nn.Module):
    """Tokens, a recurrent network, and a head on its last output or on all of them."""

    def __init__(self, kind: type[nn.RNNBase], width: float, hidden: int = 16, flat: bool = False, **how: Any) -> None:
        super().__init__()
        h = int(hidden * width)
        if "proj_size" in how:
            how["proj_size"] = int(how["proj_size"] * width)
        self.embedding = nn.Embedding(TOKENS, h)
        self.rnn = kind(h, h, batch_first=True, **how)
        out = (how.get("proj_size") or h) * (2 if how.get("bidirectional") else 1)
        self.norm = nn.LayerNorm(out)
        self.head = nn.Linear(out * (LENGTH if flat else 1), 4)
        self.flat = flat

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.rnn(self.embedding(x))[0])
        return self.head(y.flatten(1) if self.flat else y[:, -1])


class Pooled(nn.Module):
    """The outputs of an LSTM in both directions, weighed by a score for each position."""

    def __init__(self, width: float) -> None:
        super().__init__()
        h = int(16 * width)
        self.embedding = nn.Embedding(TOKENS, h)
        self.rnn = nn.LSTM(h, h, bidirectional=True, batch_first=True)
        self.score = nn.Linear(2 * h, 1)
        self.head = nn.Linear(2 * h, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.rnn(self.embedding(x))[0]
        return self.head((self.score(y.tanh()).softmax(1) * y).sum(1))


class Branches(nn.Module):
    """Convolutions side by side, twice: before a convolution, and before a head with several time steps a channel."""

    def __init__(self, width: float, parts: tuple[int, int] = (16, 16)) -> None:
        super().__init__()
        a, b = (int(n * width) for n in parts)
        self.embedding = nn.Embedding(TOKENS, a)
        self.early = nn.ModuleList([nn.Conv1d(a, a, 3, padding=1), nn.Conv1d(a, b, 1)])
        self.norm = nn.GroupNorm(1, a + b)
        self.late = nn.ModuleList([nn.Conv1d(a + b, a, k, padding=k // 2) for k in (1, 3, 5)])
        self.head = nn.Linear(3 * 2 * a, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embedding(x).transpose(1, 2)
        y = self.norm(torch.cat([c(y).relu() for c in self.early], 1))
        return self.head(F.adaptive_max_pool1d(torch.cat([c(y).relu() for c in self.late], 1), 2).flatten(1))


class Transformer(nn.Module):
    """Tokens with positions, a class token, and two layers of PyTorch's encoder."""

    def __init__(self, width: float, dim: int = 32, heads: int = 2, drop_heads: bool = False, **how: Any) -> None:
        super().__init__()
        e = int(dim * width)
        heads = int(heads * width) if drop_heads else heads
        self.embedding = nn.Embedding(TOKENS, e)
        self.position = nn.Parameter(0.02 * torch.randn(1, LENGTH + 1, e))
        self.token = nn.Parameter(torch.zeros(1, 1, e))
        layer = nn.TransformerEncoderLayer(e, heads, 2 * e, dropout=0.0, batch_first=True, **how)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(e, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.token.expand(len(x), -1, -1), self.embedding(x)], 1) + self.position
        return self.head(self.encoder(y)[:, 0])


def lstm(width: float) -> nn.Module:
    return Recurrent(nn.LSTM, width, num_layers=2, bidirectional=True)


def gru(width: float) -> nn.Module:
    return Recurrent(nn.GRU, width)


def rnn(width: float) -> nn.Module:
    return Recurrent(nn.RNN, width)


def transformer(width: float) -> nn.Module:
    return Transformer(width)


def pooled(width: float) -> nn.Module:
    return Pooled(width)


def branches(width: float) -> nn.Module:
    return Branches(width)
