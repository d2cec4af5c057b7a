"""Convolutions on a CPU that give the same results with less work, and without the faults of its library.

`padding` leaves out kernel positions that read only zeros, `onednn` avoids the calls that oneDNN computes wrongly,
`pixel` computes a convolution of one pixel as a product of matrices.
"""

from functools import partial
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.overrides import has_torch_function_unary

from pa3dfl.models.conv.onednn import Plan, plan
from pa3dfl.models.conv.padding import Window
from pa3dfl.models.conv.pixel import FUNCTIONS, Function, pointwise

__all__ = ["FUNCTIONS", "Plan", "Window", "plan", "pointwise", "replace_convolutions"]


def replace_convolutions(network: nn.Module) -> None:
    """Make the convolutions of a network follow their plans on a CPU. A GPU's library has no such faults."""
    for module in network.modules():
        for kind, function in FUNCTIONS.items():
            # A subclass with its own arithmetic keeps it.
            if isinstance(module, kind) and type(module)._conv_forward is kind._conv_forward:
                vars(module)["_conv_forward"] = partial(_forward, module, function)


def _forward(
    module: nn.modules.conv._ConvNd, function: Function, x: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    how: Any = (module.stride, module.padding, module.dilation)
    batched = x.ndim == len(module.kernel_size) + 2
    # A factored weight makes a plan of its own (`methods.common.contraction`).
    if x.device.type != "cpu" or not batched or module.padding_mode != "zeros" or has_torch_function_unary(weight):
        return type(module)._conv_forward(module, x, weight, bias)
    planned = plan(x.shape[2:], module.kernel_size, *how)
    if planned.taps < prod(module.kernel_size):
        every: Window = (slice(None),) * 2
        weight = weight[every + planned.window]
    return planned.apply(function, planned.select(x), weight, bias, module.dilation, module.groups)
