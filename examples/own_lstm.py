"""Your own recurrent network, federated at several widths.

    pa3dfl run --model own_lstm:make --data words.npz --setting levels:1,1/4,1/16 --p-min 1/4

in this folder, with a `words.npz` that holds tokens `x` (rows, positions; int64, below 50), labels `y` and perhaps
owners `client`. The only thing to do is to multiply hidden sizes by the width.
"""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, hidden: int, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, hidden, padding_idx=0)
        self.memory = nn.LSTM(hidden, hidden, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True)
        self.out = nn.Linear(2 * hidden, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        seen = (tokens != 0).unsqueeze(-1)  # 0 is padding
        outputs, _ = self.memory(self.words(tokens))
        return self.out((outputs * seen).sum(1) / seen.sum(1).clamp(min=1))


def make(width: float, num_classes: int = 4) -> nn.Module:
    return Tagger(int(32 * width), 50, num_classes)
