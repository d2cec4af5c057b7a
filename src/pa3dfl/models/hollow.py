"""A network without weights of its own: it is lent some for the time of a call."""

import threading
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pa3dfl.models.convolution import lean
from pa3dfl.models.parts import Orders, lent


class _Now(threading.local):
    """Of each thread."""

    dropping = False


now = _Now()


class Hollow:
    """`torch.func.functional_call`, which looks the whole network over at every call, once and for all.

    Not for several threads: each needs its own.
    """

    def __init__(
        self, module: nn.Module, keys: Mapping[str, tuple[str, ...]] | None = None, orders: Orders | None = None
    ) -> None:
        """`module` becomes hollow itself, and lean. Tied weights stay tied, by the first of their names.

        `keys` says of which entries a stacked parameter consists, `orders` in which order the tree holds them.
        """
        self.module = module
        lean(module)
        self._recurrent = [m for m in module.modules() if isinstance(m, nn.RNNBase)]
        for m in self._recurrent:
            vars(m)["flatten_parameters"] = _nothing  # it would move weights that are only lent
        self._orders = orders or {}
        self._droppers, self._dropping = droppers(module), True
        known: dict[nn.Parameter, tuple[str, nn.Parameter]] = {}
        self._made: dict[str, tuple[str, ...]] = {}
        self._places = []
        for prefix, owner in module.named_modules():
            for name, p in owner._parameters.items():
                if p is None:
                    continue
                if p not in known:
                    nothing = nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
                    full = f"{prefix}.{name}" if prefix else name
                    known[p] = (full, nothing)
                    of = (keys or {}).get(full, (full,))
                    if len(of) > 1 or of != (full,) or full in self._orders:
                        self._made[full] = of
                self._places.append((owner._parameters, name, *known[p]))
        self._return()

    def __call__(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """`weights` may hold more than this network has."""
        try:
            if self._made:
                weights = {**weights, **{k: lent(weights, of, self._orders) for k, of in self._made.items()}}
            for place, name, key, _ in self._places:
                place[name] = weights[key]
            self._drop(now.dropping)
            out: Tensor = self.module(x)
        finally:
            self._return()
        return out

    def _drop(self, on: bool) -> None:
        if self._droppers and on != self._dropping:
            self._dropping = on
            for m, name, p in self._droppers:
                setattr(m, name, p if on else 0.0)

    def _return(self) -> None:
        for place, name, _, nothing in self._places:
            place[name] = nothing
        for m in self._recurrent:
            m._flat_weights = []  # the module would keep what it was lent


def droppers(network: nn.Module) -> list[tuple[nn.Module, str, float]]:
    """Modules that drop out entries at random, with the name of the attribute that says how many, and its value."""
    found: list[tuple[nn.Module, str, float]] = [
        (m, "p", m.p) for m in network.modules() if isinstance(m, nn.modules.dropout._DropoutNd)
    ]
    found += [
        (m, "dropout", m.dropout) for m in network.modules() if isinstance(m, (nn.MultiheadAttention, nn.RNNBase))
    ]
    return [(m, name, p) for m, name, p in found if p]


def _nothing() -> None:
    pass
