"""Facts about a network from its modules and from one batch, and checks that it is supported."""

from collections.abc import Callable, Mapping
from fractions import Fraction

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pa3dfl.core.errors import UserError

NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)
WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
TABLES = (nn.Embedding, nn.EmbeddingBag)


def normalised(network: nn.Module) -> bool:
    return any(isinstance(m, NORMS) for m in network.modules())


def tables(network: nn.Module) -> tuple[str, ...]:
    """Names of the embeddings."""
    return tuple(n for n, m in network.named_modules() if isinstance(m, TABLES))


def check_supported(name: str, network: nn.Module) -> None:
    for place, m in network.named_modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"model {name!r} has BatchNorm at {place!r}: batch statistics do not federate; "
                "use GroupNorm or LayerNorm instead"
            )
    for place, p in network.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise UserError(
                f"model {name!r} does not fix the size of {place}: give the layer its input size instead of "
                "using a lazy one"
            )


def zero_batch(network: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Two rows of zeros that the network accepts: floats, or whole numbers if it accepts no floats."""
    floats = torch.zeros(2, *shape)
    for x in (floats, floats.long()):
        try:
            with torch.no_grad():
                network(x)
        except Exception:  # a user's network may raise anything
            continue
        return x
    return floats.long() if tables(network) else floats  # neither: `layers` raises the error


def layers(
    name: str, network: nn.Module, x: Tensor, classes: int, stacked: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], str]:
    """Names of the weighted layers in the order of their calls, and of the head.

    `stacked` names the layers of each module with stacked weights.
    """
    called: dict[str, None] = {}

    def note(*layers: str) -> Callable[..., None]:
        return lambda *_: called.update(dict.fromkeys(layers))

    inside = {n for of in stacked.values() for n in of}
    weighted = {n: m for n, m in network.named_modules() if isinstance(m, WEIGHTED) and n not in inside}
    hooks = [m.register_forward_hook(note(n)) for n, m in weighted.items()]
    hooks += [network.get_submodule(n).register_forward_hook(note(*of)) for n, of in stacked.items()]
    out = forward(name, network, {}, x, Fraction(1))
    for h in hooks:
        h.remove()
    *encoder, head = called or [""]
    if out.shape != (2, classes) or not encoder or not isinstance(weighted.get(head), nn.Linear):
        raise UserError(
            f"model {name!r} maps a batch of {tuple(x.shape[1:])} to {tuple(out.shape)[1:]} in {len(called)} "
            f"layers: expected {classes} logits from a torch.nn.Linear head after at least one other layer"
        )
    _refuse_uncalled(name, network, [n for n in weighted if n not in called], x)
    return tuple(encoder), head


def _refuse_uncalled(name: str, network: nn.Module, uncalled: list[str], x: Tensor) -> None:
    """A layer may be unused, but its weight may not be used without calling the layer."""
    held = dict(network.named_parameters())
    weights = {k: held[k].detach().requires_grad_() for n in uncalled if (k := f"{n}.weight") in held}
    out = functional_call(network, weights, (x,)) if weights else None
    if out is None or not out.requires_grad:
        return
    slopes = torch.autograd.grad(out.sum(), list(weights.values()), allow_unused=True)
    for place, slope in zip(weights, slopes, strict=True):
        if slope is not None:
            raise UserError(f"model {name!r} uses {place!r} without calling the layer: call it, as in self.layer(x)")


def forward(name: str, network: nn.Module, params: Mapping[str, Tensor], x: Tensor, width: Fraction) -> Tensor:
    """The network's output for a batch."""
    try:
        with torch.no_grad():
            out = functional_call(network, dict(params), (x,))
    except Exception as e:  # a user's network may raise anything
        shape = tuple(x.shape[1:])
        raise UserError(f"model {name!r} at width {width} cannot take a batch of shape {shape}: {one_line(e)}") from e
    if not isinstance(out, Tensor):
        raise UserError(f"model {name!r} maps a batch to a {type(out).__name__}: expected a tensor of logits")
    return out


def one_line(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'no message'}"
