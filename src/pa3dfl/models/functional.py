"""A network as a function of its weights, like `torch.func.functional_call`, but inspected only once."""

import threading
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pa3dfl.models.conv import replace_convolutions
from pa3dfl.models.stacked import Orders, stack


class _Dropout(threading.local):
    """Whether dropout is on, for each thread."""

    on = False


dropout = _Dropout()


class FunctionalModule:
    """Calls a network with the weights that it is given. Not for several threads: each needs its own."""

    def __init__(
        self, module: nn.Module, keys: Mapping[str, tuple[str, ...]] | None = None, orders: Orders | None = None
    ) -> None:
        """Changes `module` in place: its parameters become meta tensors, its convolutions are replaced (`conv`).

        Tied weights stay tied; the first of their names counts. `keys` says of which entries of the tree a stacked
        parameter consists, `orders` in which order the tree holds them.
        """
        self.module = module
        replace_convolutions(module)
        self._recurrent = [m for m in module.modules() if isinstance(m, nn.RNNBase)]
        for m in self._recurrent:
            vars(m)["flatten_parameters"] = _nothing  # it would copy the weights of a call
        self._orders = orders or {}
        self._dropouts, self._dropout_on = dropouts(module), True
        known: dict[nn.Parameter, tuple[str, nn.Parameter]] = {}
        self._stacked: dict[str, tuple[str, ...]] = {}
        self._places = []
        for prefix, owner in module.named_modules():
            for name, p in owner._parameters.items():
                if p is None:
                    continue
                if p not in known:
                    empty = nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
                    full = f"{prefix}.{name}" if prefix else name
                    known[p] = (full, empty)
                    of = (keys or {}).get(full, (full,))
                    if len(of) > 1 or of != (full,) or full in self._orders:
                        self._stacked[full] = of
                self._places.append((owner._parameters, name, *known[p]))
        self._clear()

    def __call__(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """`weights` may hold more than this network has."""
        try:
            if self._stacked:
                weights = {**weights, **{k: stack(weights, of, self._orders) for k, of in self._stacked.items()}}
            for place, name, key, _ in self._places:
                place[name] = weights[key]
            self._set_dropout(dropout.on)
            out: Tensor = self.module(x)
        finally:
            self._clear()
        return out

    def _set_dropout(self, on: bool) -> None:
        if self._dropouts and on != self._dropout_on:
            self._dropout_on = on
            for m, name, p in self._dropouts:
                setattr(m, name, p if on else 0.0)

    def _clear(self) -> None:
        for place, name, _, empty in self._places:
            place[name] = empty
        for m in self._recurrent:
            m._init_flat_weights()  # the module would keep the weights of the call, or not see them in the next one


def dropouts(network: nn.Module) -> list[tuple[nn.Module, str, float]]:
    """Modules with dropout: each with the name and the value of the attribute that holds its rate."""
    found: list[tuple[nn.Module, str, float]] = [
        (m, "p", m.p) for m in network.modules() if isinstance(m, nn.modules.dropout._DropoutNd)
    ]
    found += [
        (m, "dropout", m.dropout) for m in network.modules() if isinstance(m, (nn.MultiheadAttention, nn.RNNBase))
    ]
    return [(m, name, p) for m, name, p in found if p]


def _nothing() -> None:
    pass
