"""A network at many widths: shapes, head and layers, inferred from the factory alone.

A factory is `make(width, ...) -> nn.Module`. It is called with the keywords `input_shape`, `num_classes`
and `full_features` as far as its signature names them. Comparing parameter shapes at width 1 and at
p_min tells which dimensions scale, so that slicing, decomposing and costing work for any model.
"""

import copy
import inspect
import threading
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pa3dfl.errors import UserError
from pa3dfl.tree import Tree

Shapes = dict[str, tuple[int, ...]]
FULL = Fraction(1)
_STACKED = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)
_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Model:
    """One architecture at every width that its layers allow.

    With `full_features` the last encoder layer keeps its full output at every width, so that the
    head has one size for all clients.
    """

    def __init__(
        self,
        factory: Callable[..., nn.Module],
        name: str,
        input_shape: tuple[int, ...],
        classes: int,
        full_features: bool = False,
    ) -> None:
        self.factory, self.name = factory, name
        self.input_shape, self.classes = tuple(input_shape), classes
        self.full_features = full_features
        try:
            self._keywords = set(inspect.signature(factory).parameters)
        except (TypeError, ValueError):  # builtins have no signature
            self._keywords = set()
        self._networks = _Networks()
        self._building = threading.RLock()
        full = self._build(FULL)
        self._refuse_unfederated(full)
        self._full_shapes = _shapes(full)
        self.normalised = any(isinstance(m, _NORMS) for m in full.modules())
        self.strided_points = any(map(_strides_a_point, full.modules()))
        """Whether a convolution has a stride along a side of one tap, as the shortcuts of many residual networks."""
        self.layers, self.head = self._trace(full)

    def check(self, p_min: Fraction) -> None:
        """Refuse a model that cannot be pruned to `p_min`, saying which layer and what to change."""
        if p_min == FULL:
            return
        narrow = _shapes(self._build(p_min))
        if narrow == self._full_shapes:
            raise UserError(
                f"model {self.name!r} ignores its width: it has the same shapes at width {p_min} and 1; "
                "multiply its hidden sizes by the factory's first argument"
            )
        self.shapes(p_min)

    def shapes(self, width: Fraction) -> Shapes:
        """Parameter shapes at a width."""
        return self._network(width)[2]

    def is_layer(self, name: str) -> bool:
        """Whether a parameter is the weight of a convolution or linear layer of the encoder."""
        return name.removesuffix(".weight") in self.layers and name.endswith(".weight")

    def init(self, width: Fraction, seed: int) -> Tree:
        """Fresh parameters by PyTorch's own rule for each layer, a function of the seed alone."""
        # A factory draws from the one generator that all threads share.
        with self._building, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._build(width)
        params = {k: v.detach().clone() for k, v in module.named_parameters()}
        g = torch.Generator().manual_seed(seed)
        for k, shape in self.shapes(width).items():
            if params[k].shape != shape:  # a layer that was widened here, not by the factory
                bound = params[k].abs().max()
                params[k] = torch.empty(shape).uniform_(-1, 1, generator=g) * bound
        return params

    def __call__(self, params: Mapping[str, Tensor], x: Tensor, width: Fraction) -> Tensor:
        return functional_call(self._network(width)[0], dict(params), (x,))

    def features(self, params: Mapping[str, Tensor], x: Tensor, width: Fraction) -> Tensor:
        """What the encoder hands to the head."""
        encoder = {k: v for k, v in params.items() if not k.startswith(f"{self.head}.")}
        return functional_call(self._network(width)[1], encoder, (x,))

    def _network(self, width: Fraction) -> tuple[nn.Module, nn.Module, Shapes]:
        """The network, its encoder and its shapes. Both give structure only: their weights are never used."""
        networks = self._networks.by_width
        if width not in networks:
            with self._building:
                module = self._build(width)
            shapes = _shapes(module)
            self._check_shapes(width, shapes)
            if self.full_features and not self._offers("full_features"):
                shapes = self._widened(width, module, shapes)
            _hollow(module)
            encoder = copy.deepcopy(module)
            encoder.set_submodule(self.head, nn.Identity())
            networks[width] = (module, encoder, shapes)
        return networks[width]

    def _offers(self, keyword: str) -> bool:
        return keyword in self._keywords

    def _build(self, width: Fraction) -> nn.Module:
        known = {
            "input_shape": self.input_shape,
            "num_classes": self.classes,
            "full_features": self.full_features,
        }
        kwargs = {k: v for k, v in known.items() if self._offers(k)}
        try:
            with warnings.catch_warnings():
                # A layer without outputs is refused in our own words.
                warnings.filterwarnings("ignore", "Initializing zero-element tensors")
                module = self.factory(float(width), **kwargs)
        except Exception as e:  # a user's factory may raise anything
            raise UserError(f"model {self.name!r} cannot be built at width {width}: {_say(e)}") from e
        if not isinstance(module, nn.Module):
            raise UserError(f"model {self.name!r} gave a {type(module).__name__}: expected a torch.nn.Module")
        return module

    def _refuse_unfederated(self, module: nn.Module) -> None:
        for name, m in module.named_modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm):
                raise UserError(
                    f"model {self.name!r} has BatchNorm at {name!r}: batch statistics do not federate; "
                    "use GroupNorm or LayerNorm instead"
                )
            if isinstance(m, _STACKED):
                raise UserError(
                    f"model {self.name!r} has {type(m).__name__} at {name!r}: its gates or projections are stacked in "
                    "one weight, whose leading rows are not a narrower layer; use convolutions and linear layers"
                )
        for name, p in module.named_parameters():
            if isinstance(p, nn.parameter.UninitializedParameter):
                raise UserError(
                    f"model {self.name!r} leaves the size of {name} open: give the layer its input size instead of "
                    "using a lazy one"
                )

    def _trace(self, module: nn.Module) -> tuple[tuple[str, ...], str]:
        """Names of the weighted layers in the order in which a batch meets them, and of the head."""
        order: dict[str, None] = {}

        def note(name: str) -> Callable[..., None]:
            return lambda *_: order.update({name: None})

        hooks = [m.register_forward_hook(note(n)) for n, m in module.named_modules() if isinstance(m, _WEIGHTED)]
        out = self._try(module, {}, FULL)
        for h in hooks:
            h.remove()
        *layers, head = order or [""]
        if out.shape != (2, self.classes) or not layers or not isinstance(module.get_submodule(head), nn.Linear):
            raise UserError(
                f"model {self.name!r} maps a batch of {self.input_shape} to {tuple(out.shape)[1:]} in {len(order)} "
                f"layers: expected {self.classes} logits from a torch.nn.Linear head after at least one other layer"
            )
        self._refuse_uncalled(
            module, [n for n, m in module.named_modules() if isinstance(m, _WEIGHTED) and n not in order]
        )
        return tuple(layers), head

    def _refuse_uncalled(self, module: nn.Module, names: list[str]) -> None:
        """A layer that is not called may be left over, but its weight may not be used without it."""
        held = dict(module.named_parameters())
        weights = {k: held[k].detach().requires_grad_() for n in names if (k := f"{n}.weight") in held}
        out = functional_call(module, weights, (torch.zeros(2, *self.input_shape),)) if weights else None
        if out is None or not out.requires_grad:
            return
        slopes = torch.autograd.grad(out.sum(), list(weights.values()), allow_unused=True)
        for name, slope in zip(weights, slopes, strict=True):
            if slope is not None:
                raise UserError(
                    f"model {self.name!r} uses {name!r} without calling the layer, which is then not seen: call it, as "
                    "in self.layer(x)"
                )

    def _try(self, module: nn.Module, params: Tree, width: Fraction) -> Tensor:
        try:
            with torch.no_grad():
                out = functional_call(module, params, (torch.zeros(2, *self.input_shape),))
        except Exception as e:  # a user's network may raise anything
            raise UserError(
                f"model {self.name!r} at width {width} cannot take a batch of shape {self.input_shape}: {_say(e)}"
            ) from e
        if not isinstance(out, Tensor):
            raise UserError(f"model {self.name!r} maps a batch to a {type(out).__name__}: expected a tensor of logits")
        return out

    def _check_shapes(self, width: Fraction, shapes: Shapes) -> None:
        if shapes.keys() != self._full_shapes.keys():
            raise UserError(
                f"model {self.name!r} has other parameters at width {width} than at 1: a width may change "
                "the sizes of layers, not which layers there are"
            )
        for name, shape in shapes.items():
            for d, (n, whole) in enumerate(zip(shape, self._full_shapes[name], strict=True)):
                if n != whole and n != whole * width:
                    raise UserError(
                        f"model {self.name!r}: dimension {d} of {name} is {whole} wide, and {whole} × {width} = "
                        f"{float(whole * width):g} (the factory made {n}); make it a multiple of "
                        f"{width.denominator} or choose a larger p_min"
                    )

    def _widened(self, width: Fraction, module: nn.Module, shapes: Shapes) -> Shapes:
        """Shapes with the last encoder layer at full output, for a factory that cannot say so itself.

        Linear and convolution layers take whatever weights they are given, so that this works unless
        something with a size of its own stands between that layer and the head: one trial tells.
        """
        last, full = self.layers[-1], self._full_shapes
        kept = [k for k in (f"{last}.weight", f"{last}.bias") if k in shapes]
        wide = shapes | {k: (full[k][0], *shapes[k][1:]) for k in kept}
        wide[f"{self.head}.weight"] = full[f"{self.head}.weight"]
        try:
            self._try(module, {k: torch.zeros(s) for k, s in wide.items()}, width)
        except UserError as e:
            raise UserError(
                f"model {self.name!r} does not run with its last encoder layer {last!r} at full output: give its "
                "factory an argument full_features=False that keeps that layer unpruned when True"
            ) from e
        return wide


class _Networks(threading.local):
    """Each thread has its own: `functional_call` puts weights into a network for the time of a call."""

    def __init__(self) -> None:
        self.by_width: dict[Fraction, tuple[nn.Module, nn.Module, Shapes]] = {}


def _hollow(module: nn.Module) -> None:
    """Free the memory of weights that are never used; tied ones stay tied."""
    empty: dict[nn.Parameter, nn.Parameter] = {}
    for m in module.modules():
        for name, p in list(m.named_parameters(recurse=False, remove_duplicate=False)):
            if p not in empty:
                empty[p] = nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
            setattr(m, name, empty[p])


def _shapes(module: nn.Module) -> Shapes:
    return {k: tuple(v.shape) for k, v in module.named_parameters()}


def _strides_a_point(m: nn.Module) -> bool:
    return isinstance(m, nn.Conv2d) and any(k == 1 and s > 1 for k, s in zip(m.kernel_size, m.stride, strict=True))


def _say(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'no message'}"
