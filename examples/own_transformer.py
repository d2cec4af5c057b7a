"""Your own transformer, federated at several widths.

    pa3dfl run --model own_transformer:make --data words.npz --setting levels:1,1/4,1/16 --p-min 1/4

in this folder, with the `words.npz` of `own_lstm.py`. All heads are kept and become smaller; a factory that multiplies
the number of heads by the width drops whole heads instead.
"""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, dim: int, vocabulary: int, length: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.place = nn.Embedding(length, dim)
        block = nn.TransformerEncoderLayer(d_model=dim, nhead=4, dim_feedforward=4 * dim, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, num_layers=2)
        self.norm = nn.LayerNorm(dim)
        self.classify = nn.Linear(dim, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == 0
        padding = padding & ~padding.all(1, keepdim=True)  # a row of padding alone has nothing else to look at
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.embed(tokens) + self.place(places), src_key_padding_mask=padding)
        return self.classify(self.norm(x.mean(dim=1)))


def make(width: float, input_shape: tuple[int, ...] = (8,), num_classes: int = 4) -> nn.Module:
    return Classifier(int(64 * width), 50, input_shape[0], num_classes)
