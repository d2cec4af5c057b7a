"""The paper's two convolutional networks (table `tb_model`). Neither has an activation after its head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# How many numbers a CPU processes at once, at most.
BFLOAT16_VECTOR = 32


class PooledConv2d(nn.Conv2d):
    """A convolution and a 2×2 maximum.

    The bias is added to the maximum, which is the maximum with the bias added, at a quarter of the cost.
    """

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        out = F.max_pool2d(self._conv_forward(x, self.weight, None), 2)
        bias = self.bias.to(out.dtype).view(-1, 1, 1)  # products may be narrower than weights
        return out + (bias + torch.zeros_like(out[0]) if in_short_runs(out) else bias)


def in_short_runs(out: Tensor) -> bool:
    """Whether a CPU would add the bias to the few channels of each pixel; adding it to whole images is faster."""
    on_cpu, channels_last = out.device.type == "cpu", out.stride(1) == 1
    return on_cpu and channels_last and out.dtype is torch.bfloat16 and out.shape[1] < BFLOAT16_VECTOR


class TwoLayerCNN(nn.Module):
    """conv-pool-relu twice, two linear layers with relu, a linear head.

    Features are flattened channel first, so that the leading channels of `conv2` are the leading
    input columns of `fc1`.
    """

    def __init__(
        self,
        width: float,
        input_shape: tuple[int, ...],
        num_classes: int,
        channels: tuple[int, int],
        hidden: tuple[int, int],
        padding: int,
        full_features: bool,
    ) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise ValueError(f"it needs images (channels, height, width), and the data has {input_shape}")
        depth, *pixels = input_shape
        c1, c2, h1 = (int(n * width) for n in (*channels, hidden[0]))
        h2 = hidden[1] if full_features else int(hidden[1] * width)
        for _ in range(2):
            pixels = [(n + 2 * padding - 4) // 2 for n in pixels]
        self.conv1 = PooledConv2d(depth, c1, 5, padding=padding)
        self.conv2 = PooledConv2d(c1, c2, 5, padding=padding)
        self.fc1 = nn.Linear(c2 * pixels[0] * pixels[1], h1)
        self.fc2 = nn.Linear(h1, h2)
        self.head = nn.Linear(h2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.fc1(x.flatten(1)))
        out: Tensor = self.head(F.relu(self.fc2(x)))
        return out


def cnn_fashion(
    width: float, input_shape: tuple[int, ...] = (1, 28, 28), num_classes: int = 10, full_features: bool = False
) -> nn.Module:
    return TwoLayerCNN(width, input_shape, num_classes, (32, 64), (512, 128), 2, full_features)


def cnn_cifar100(
    width: float, input_shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 100, full_features: bool = False
) -> nn.Module:
    return TwoLayerCNN(width, input_shape, num_classes, (64, 64), (384, 192), 0, full_features)
