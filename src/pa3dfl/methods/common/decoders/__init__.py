"""The hyper-network's decoders: linear maps from mixes to the personal parameters of clients.

A decoder makes m outputs of one shape from the mixes of m clients; each client holds the leading entries of its own.
Two operations are all that a round asks of decoders:

- `decode`: fill in what clients hold of their outputs;
- `learn`: a step of SGD towards what they made of it.

`plain` says them in PyTorch's terms. `fused` does each in one pass over the weights, on a GPU.
"""

from types import ModuleType

from pa3dfl.methods.common.decoders import fused, plain
from pa3dfl.methods.common.decoders.decoder import Decoder, Held, Room, Shape

__all__ = ["Decoder", "Held", "Room", "Shape", "plain", "suited"]


def suited(decoders: list[Decoder], clients: list[Held]) -> ModuleType:
    """The implementation for these decoders and what their clients hold."""
    return fused if fused.serves(decoders, clients) else plain
