"""A network for use without this package: an ordinary module of one width, with its weights."""

from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor, nn

from pa3dfl.models.model import Model
from pa3dfl.models.stacked import stack

# The attributes in which layers hold the sizes of their weights: outputs, inputs.
SIZES = (("out_features", "in_features"), ("out_channels", "in_channels"))


def network(model: Model, params: Mapping[str, Tensor], width: Fraction) -> nn.Module:
    """The factory's network at this width with these parameters, a tree as `Model.init` makes it, on the CPU.

    Its layers have the sizes of the parameters: the last encoder layer may be wider than the factory made it.
    """
    with torch.random.fork_rng(devices=[]):  # a factory draws its start
        module = model.build(width).eval()
    for name, p in module.named_parameters():
        held = stack(params, model.stacks.keys.get(name, (name,)), model.blocks.orders)
        p.data = held.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    for m in module.modules():
        if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            for names in SIZES:
                for name, n in zip(names, m.weight.shape, strict=False):
                    if hasattr(m, name):
                        setattr(m, name, n * (getattr(m, "groups", 1) if name == "in_channels" else 1))
    return module.requires_grad_(False)
