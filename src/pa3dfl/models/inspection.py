"""What can be learned from a network by looking at it and passing it one batch, and what is refused on sight."""

from collections.abc import Callable, Mapping
from fractions import Fraction

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pa3dfl.core.errors import UserError

STACKED = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)
WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def normalised(network: nn.Module) -> bool:
    return any(isinstance(m, NORMS) for m in network.modules())


def refuse_unfederated(name: str, network: nn.Module) -> None:
    for place, m in network.named_modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"model {name!r} has BatchNorm at {place!r}: batch statistics do not federate; "
                "use GroupNorm or LayerNorm instead"
            )
        if isinstance(m, STACKED):
            raise UserError(
                f"model {name!r} has {type(m).__name__} at {place!r}: its gates or projections are stacked in "
                "one weight, whose leading rows are not a narrower layer; use convolutions and linear layers"
            )
    for place, p in network.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise UserError(
                f"model {name!r} leaves the size of {place} open: give the layer its input size instead of "
                "using a lazy one"
            )


def layers(name: str, network: nn.Module, shape: tuple[int, ...], classes: int) -> tuple[tuple[str, ...], str]:
    """Names of the weighted layers in the order in which a batch meets them, and of the head."""
    met: dict[str, None] = {}

    def note(layer: str) -> Callable[..., None]:
        return lambda *_: met.update({layer: None})

    weighted = {n: m for n, m in network.named_modules() if isinstance(m, WEIGHTED)}
    hooks = [m.register_forward_hook(note(n)) for n, m in weighted.items()]
    out = tried(name, network, {}, shape, Fraction(1))
    for h in hooks:
        h.remove()
    *encoder, head = met or [""]
    if out.shape != (2, classes) or not encoder or not isinstance(network.get_submodule(head), nn.Linear):
        raise UserError(
            f"model {name!r} maps a batch of {shape} to {tuple(out.shape)[1:]} in {len(met)} "
            f"layers: expected {classes} logits from a torch.nn.Linear head after at least one other layer"
        )
    _refuse_uncalled(name, network, [n for n in weighted if n not in met], shape)
    return tuple(encoder), head


def _refuse_uncalled(name: str, network: nn.Module, uncalled: list[str], shape: tuple[int, ...]) -> None:
    """A layer that is not called may be left over, but its weight may not be used without it."""
    held = dict(network.named_parameters())
    weights = {k: held[k].detach().requires_grad_() for n in uncalled if (k := f"{n}.weight") in held}
    out = functional_call(network, weights, (torch.zeros(2, *shape),)) if weights else None
    if out is None or not out.requires_grad:
        return
    slopes = torch.autograd.grad(out.sum(), list(weights.values()), allow_unused=True)
    for place, slope in zip(weights, slopes, strict=True):
        if slope is not None:
            raise UserError(
                f"model {name!r} uses {place!r} without calling the layer, which is then not seen: call it, as "
                "in self.layer(x)"
            )


def tried(
    name: str, network: nn.Module, params: Mapping[str, Tensor], shape: tuple[int, ...], width: Fraction
) -> Tensor:
    """What the network makes of two rows of zeros."""
    try:
        with torch.no_grad():
            out = functional_call(network, dict(params), (torch.zeros(2, *shape),))
    except Exception as e:  # a user's network may raise anything
        raise UserError(f"model {name!r} at width {width} cannot take a batch of shape {shape}: {say(e)}") from e
    if not isinstance(out, Tensor):
        raise UserError(f"model {name!r} maps a batch to a {type(out).__name__}: expected a tensor of logits")
    return out


def say(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'no message'}"
