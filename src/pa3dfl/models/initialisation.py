"""Initial weights: one rule for all networks and all methods.

`he`: weights of encoder layers are normal with variance 2/fan_in (He et al., 2015, the gain of ReLU), those that no
ReLU follows (the head, gates of recurrent layers, projections of attention) with variance 1/fan_in. Biases are zero.
`pytorch`: weights and biases are uniform in ±1/√fan_in, the default of PyTorch's linear layers and convolutions.
"""

import math
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from pa3dfl.core.randomness import generator
from pa3dfl.core.tree import Tree


def deviation(rule: str, fan_in: int, without_relu: bool = False) -> float:
    """Standard deviation of a layer's weights."""
    return math.sqrt({"he": 1 if without_relu else 2, "pytorch": 1 / 3}[rule] / fan_in)


def bias_deviation(rule: str, fan_in: int) -> float:
    return deviation(rule, fan_in) if rule == "pytorch" else 0.0


def draw(
    rule: str, params: Mapping[str, Tensor], layers: Iterable[str], without_relu: Collection[str], seed: int
) -> Tree:
    """Initial weights and biases of the layers, each with its own key. `without_relu` includes the head."""
    tree: Tree = {}
    for layer in dict.fromkeys((*layers, *without_relu)):
        weight, bias = f"{layer}.weight", f"{layer}.bias"
        if weight not in params:  # tied to another layer's
            continue
        fan_in = params[weight][0].numel()
        for name in {weight, bias} & params.keys():
            fresh, g = torch.empty_like(params[name]), generator(seed, f"start:{name}")
            if rule == "pytorch":
                tree[name] = fresh.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=g)
            elif name == weight:
                tree[name] = fresh.normal_(0, deviation(rule, fan_in, layer in without_relu), generator=g)
            else:
                tree[name] = fresh.zero_()
    return tree
