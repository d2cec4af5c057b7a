"""The hyper-network's decoders: linear maps from mixes to the personal parameters of clients.

A decoder makes m outputs of one shape from the mixes of m clients; each client holds the leading entries of its output.
A round needs two operations:

- `decode`: write the entries that clients hold of their outputs;
- `learn`: take a step of SGD towards the trained entries.

`plain` implements them with PyTorch's operations. `fused` does each in one pass over the weights, on a GPU.
"""

from types import ModuleType

from pa3dfl.methods.common.decoders import fused, plain
from pa3dfl.methods.common.decoders.decoder import Decoder, Held, Shape, Unfilled

__all__ = ["Decoder", "Held", "Shape", "Unfilled", "plain", "suited"]


def suited(decoders: list[Decoder], clients: list[Held]) -> ModuleType:
    """The implementation for these decoders and these held entries."""
    return fused if fused.serves(decoders, clients) else plain
