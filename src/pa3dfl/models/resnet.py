"""ResNet-18 with group normalisation: torchvision's layout, GroupNorm(2, C) for every norm."""

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, inner: int, outputs: int, stride: int = 1, shortcut: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(2, inner)
        self.conv2 = nn.Conv2d(inner, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(2, outputs)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(2, outputs))
            if shortcut
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.shortcut is not None:
            x = self.shortcut(x)
        return F.relu(y + x)


class ResNet18(nn.Module):
    def __init__(self, width: float, depth: int, num_classes: int, full_features: bool) -> None:
        super().__init__()
        w = [int(n * width) for n in (64, 128, 256, 512)]
        features = 512 if full_features else w[3]
        self.conv1 = nn.Conv2d(depth, w[0], 7, 2, padding=3, bias=False)
        self.norm1 = nn.GroupNorm(2, w[0])
        # With `full_features` the last block needs a 1×1 shortcut at narrow widths, and has it at width 1 too, so that
        # all clients hold the same tensors.
        self.blocks = nn.Sequential(
            BasicBlock(w[0], w[0], w[0]),
            BasicBlock(w[0], w[0], w[0]),
            BasicBlock(w[0], w[1], w[1], stride=2, shortcut=True),
            BasicBlock(w[1], w[1], w[1]),
            BasicBlock(w[1], w[2], w[2], stride=2, shortcut=True),
            BasicBlock(w[2], w[2], w[2]),
            BasicBlock(w[2], w[3], w[3], stride=2, shortcut=True),
            BasicBlock(w[3], w[3], features, shortcut=full_features),
        )
        self.head = nn.Linear(features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 3, 2, padding=1)
        out: Tensor = self.head(self.blocks(x).mean((2, 3)))
        return out


def resnet18_gn(
    width: float, input_shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 10, full_features: bool = False
) -> nn.Module:
    if len(input_shape) != 3:
        raise ValueError(f"it needs images (channels, height, width), and the data has {input_shape}")
    return ResNet18(width, input_shape[0], num_classes, full_features)
