"""A network without weights of its own: it is lent some for the time of a call."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pa3dfl.models.convolution import lean


class Hollow:
    """`torch.func.functional_call`, which looks the whole network over at every call, once and for all.

    Not for several threads: each needs its own.
    """

    def __init__(self, module: nn.Module) -> None:
        """`module` becomes hollow itself, and lean. Tied weights stay tied, by the first of their names."""
        self.module = module
        lean(module)
        known: dict[nn.Parameter, tuple[str, nn.Parameter]] = {}
        self._places = []
        for prefix, owner in module.named_modules():
            for name, p in owner._parameters.items():
                if p is None:
                    continue
                if p not in known:
                    nothing = nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
                    known[p] = (f"{prefix}.{name}" if prefix else name, nothing)
                self._places.append((owner._parameters, name, *known[p]))
        self._return()

    def __call__(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """`weights` may hold more than this network has."""
        try:
            for place, name, key, _ in self._places:
                place[name] = weights[key]
            out: Tensor = self.module(x)
        finally:
            self._return()
        return out

    def _return(self) -> None:
        for place, name, _, nothing in self._places:
            place[name] = nothing
