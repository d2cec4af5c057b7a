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

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.models import inspection, start
from pa3dfl.models.hollow import Hollow

Shapes = dict[str, tuple[int, ...]]
FULL = Fraction(1)


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
        rule: str = "he",
    ) -> None:
        self.factory, self.name = factory, name
        self.input_shape, self.classes = tuple(input_shape), classes
        self.full_features, self.rule = full_features, rule
        try:
            self._keywords = set(inspect.signature(factory).parameters)
        except (TypeError, ValueError):  # builtins have no signature
            self._keywords = set()
        self._networks = _Networks()
        self._building = threading.RLock()
        full = self._build(FULL)
        inspection.refuse_unfederated(name, full)
        self._full_shapes = _shapes(full)
        self.normalised = inspection.normalised(full)
        self.layers, self.head = inspection.layers(name, full, self.input_shape, classes)

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
        """Fresh parameters, a function of the seed alone.

        Layers and head start by the model's rule. Everything else keeps what the factory made.
        """
        # A factory draws from the one generator that all threads share.
        with self._building, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._build(width)
        made, shapes = dict(module.named_parameters()), self.shapes(width)
        # A layer that was widened here, not by the factory, has no start yet.
        params = {k: made[k].detach().clone() if made[k].shape == s else torch.empty(s) for k, s in shapes.items()}
        return params | start.draw(self.rule, params, self.layers, self.head, seed)

    def __call__(self, params: Mapping[str, Tensor], x: Tensor, width: Fraction) -> Tensor:
        return self._network(width)[0](params, x)

    def features(self, params: Mapping[str, Tensor], x: Tensor, width: Fraction) -> Tensor:
        """What the encoder hands to the head."""
        return self._network(width)[1](params, x)

    def _network(self, width: Fraction) -> tuple[Hollow, Hollow, Shapes]:
        """The network, its encoder and its shapes."""
        networks = self._networks.by_width
        if width not in networks:
            with self._building:
                module = self._build(width)
            shapes = _shapes(module)
            self._check_shapes(width, shapes)
            if self.full_features and not self._offers("full_features"):
                shapes = self._widened(width, module, shapes)
            whole = Hollow(module)
            encoder = copy.deepcopy(module)
            encoder.set_submodule(self.head, nn.Identity())
            networks[width] = (whole, Hollow(encoder), shapes)
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
            raise UserError(f"model {self.name!r} cannot be built at width {width}: {inspection.say(e)}") from e
        if not isinstance(module, nn.Module):
            raise UserError(f"model {self.name!r} gave a {type(module).__name__}: expected a torch.nn.Module")
        return module

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
            inspection.tried(self.name, module, {k: torch.zeros(s) for k, s in wide.items()}, self.input_shape, width)
        except UserError as e:
            raise UserError(
                f"model {self.name!r} does not run with its last encoder layer {last!r} at full output: give its "
                "factory an argument full_features=False that keeps that layer unpruned when True"
            ) from e
        return wide


class _Networks(threading.local):
    """Each thread has its own."""

    def __init__(self) -> None:
        self.by_width: dict[Fraction, tuple[Hollow, Hollow, Shapes]] = {}


def _shapes(module: nn.Module) -> Shapes:
    return {k: tuple(v.shape) for k, v in module.named_parameters()}
