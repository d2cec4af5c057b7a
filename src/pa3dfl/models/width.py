"""A network at many widths: shapes, head and layers, inferred from the factory alone.

A factory is `make(width, ...) -> nn.Module`. It is called with the keywords `input_shape`, `num_classes`
and `full_features` as far as its signature names them. Comparing parameter shapes at width 1 and at
p_min tells which dimensions scale, so that slicing, decomposing and costing work for any model.
"""

import copy
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.models import checks, inspection, parts, start
from pa3dfl.models.blocks import all_blocks, head_blocks
from pa3dfl.models.functional import FunctionalModule, dropout, dropouts

Shapes = dict[str, tuple[int, ...]]
FULL = Fraction(1)


class Model:
    """One architecture at every width that its layers allow.

    With `full_features` the last encoder layer keeps its full output at every width, so that the head has one size
    for all clients. Where that layer cannot (it is recurrent, or its output is added to others, or a norm follows it)
    the head has as many inputs as the features have at a width.
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
        self.stacks = parts.stacks(full)
        self.full_shapes: Shapes = self._shapes(full)
        self.normalised, self.tables = inspection.normalised(full), inspection.tables(full)
        batch = inspection.blank(full, self.input_shape)
        self.drops_out = bool(dropouts(full))
        self.whole_numbers = not batch.is_floating_point()
        self.layers, self.head = inspection.layers(name, full, batch, classes, self.stacks.layers)
        narrow = self._narrower()
        heads = head_blocks(self.stacks, None if narrow is None else parts.stacks(narrow), self.full_shapes)
        once = FunctionalModule(full, self.stacks.keys, heads.orders)
        self._narrow_shapes = None if narrow is None else self._shapes(narrow)
        self.blocks = all_blocks(self, heads, lambda params: once(params, batch))

    def check(self, p_min: Fraction) -> None:
        """Refuse a model that cannot be pruned to `p_min`, saying which layer and what to change."""
        if p_min == FULL:
            return
        narrow = self._shapes(self._build(p_min))
        if narrow == self.full_shapes:
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

    def outputs(self, layer: str) -> int:
        """How many channels a layer or an embedding puts out at full width."""
        return self.full_shapes[f"{layer}.weight"][layer in self.tables]

    def takes(self, name: str) -> list[int]:
        """The dimensions of a parameter that are the channels which reach it."""
        owner, _, what = name.rpartition(".")
        if owner in self.layers or owner == self.head:
            return [1] if what == "weight" else []
        shape, narrow = self.full_shapes[name], self._narrow_shapes
        if narrow is None or len(shape) < 2:
            return [0][: len(shape)]
        return [d for d, n in enumerate(shape) if n != narrow[name][d]][:1]

    @cached_property
    def calm(self) -> frozenset[str]:
        """Layers that no ReLU follows: the head, gates, and the projections of attention."""
        return frozenset([self.head, *(n for of in self.stacks.layers.values() for n in of)])

    def init(self, width: Fraction, seed: int) -> Tree:
        """Fresh parameters, a function of the seed alone.

        Layers and head start by the model's rule. Everything else keeps what the factory made.
        """
        # A factory draws from the one generator that all threads share.
        with self._building, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._build(width)
        made, shapes = self._apart(module), self.shapes(width)
        # A layer that was widened here, not by the factory, has no start yet.
        params = {k: made[k].detach().clone() if made[k].shape == s else torch.empty(s) for k, s in shapes.items()}
        return params | start.draw(self.rule, params, self.layers, self.calm, seed)

    def __call__(self, params: Mapping[str, Tensor], x: Tensor, width: Fraction) -> Tensor:
        return self._network(width)[0](params, self._taken(x, params))

    def features(self, params: Mapping[str, Tensor], x: Tensor, width: Fraction) -> Tensor:
        """What the encoder hands to the head, in the order of the head's weight."""
        features = self._network(width)[1](params, self._taken(x, params))
        return parts.in_tree_order(features, self.blocks.orders.get(f"{self.head}.weight", (1, 1))[1])

    @contextmanager
    def drawing(self, seed: int) -> Iterator[None]:
        """Inside, dropout is on, and drawn by the seed; outside it is off. One thread at a time."""
        with self._building:
            torch.manual_seed(seed)
            dropout.on = True
            try:
                yield
            finally:
                dropout.on = False

    def blank(self, rows: int, device: torch.device | None = None) -> Tensor:
        """A batch of zeros."""
        dtype = torch.int64 if self.whole_numbers else torch.float32
        return torch.zeros(rows, *self.input_shape, dtype=dtype, device=device)

    def _taken(self, x: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """A batch as the network takes it: tokens as they are, measured whole numbers as the others."""
        if x.is_floating_point() == (not self.whole_numbers):
            return x
        if self.whole_numbers:
            raise UserError(
                f"model {self.name!r} takes whole numbers (tokens), and the data has others: save x as int64"
            )
        return x.to(next(iter(params.values())).dtype)

    def _network(self, width: Fraction) -> tuple[FunctionalModule, FunctionalModule, Shapes]:
        """The network, its encoder and its shapes."""
        networks = self._networks.by_width
        if width not in networks:
            # A factory draws random numbers, and so does a trial with dropout: neither may shift the draws of a step.
            # The network is kept, so that it must not be one of the fake tensors of whoever counts costs.
            with self._building, torch.random.fork_rng(devices=[]), unset_fake_temporarily():
                module = self._build(width)
                shapes = self._shapes(module)
                checks.shapes_at(self.name, width, shapes, self.full_shapes)
                checks.heads_at(self.name, width, parts.stacks(module).heads, self.stacks, self.blocks)
                if self.full_features and "full_features" not in self._keywords:
                    shapes = self._widened(width, module, shapes)
                encoder = copy.deepcopy(module)
                encoder.set_submodule(self.head, nn.Identity())
                how = (self.stacks.keys, self.blocks.orders)
                networks[width] = (FunctionalModule(module, *how), FunctionalModule(encoder, *how), shapes)
        return networks[width]

    def _build(self, width: Fraction) -> nn.Module:
        known = {
            "input_shape": self.input_shape,
            "num_classes": self.classes,
            "full_features": self.full_features,
        }
        kwargs = {k: v for k, v in known.items() if k in self._keywords}
        try:
            # PyTorch frees memory twice after a copy of a fake tensor, and factories copy layers.
            with warnings.catch_warnings(), unset_fake_temporarily():
                # A layer without outputs is refused in our own words.
                warnings.filterwarnings("ignore", "Initializing zero-element tensors")
                module = self.factory(float(width), **kwargs)
        except Exception as e:  # a user's factory may raise anything
            raise UserError(f"model {self.name!r} cannot be built at width {width}: {inspection.say(e)}") from e
        if not isinstance(module, nn.Module):
            raise UserError(f"model {self.name!r} gave a {type(module).__name__}: expected a torch.nn.Module")
        return module

    def _widened(self, width: Fraction, module: nn.Module, shapes: Shapes) -> Shapes:
        """Shapes with the last encoder layer at full output, for a factory that cannot say so itself.

        Linear and convolution layers take whatever weights they are given, so that this works unless
        something with a size of its own stands between that layer and the head: one trial tells.
        """
        last, full = self.layers[-1], self.full_shapes
        if any(last in of for of in self.stacks.layers.values()):
            return shapes
        kept = [k for k in (f"{last}.weight", f"{last}.bias") if k in shapes]
        wide = shapes | {k: (full[k][0], *shapes[k][1:]) for k in kept}
        wide[f"{self.head}.weight"] = full[f"{self.head}.weight"]
        weights = {k: torch.zeros(wide[k]) for k in (*kept, f"{self.head}.weight")}
        try:
            inspection.tried(self.name, module, weights, self.blank(2), width)
        except UserError:
            return shapes
        return wide

    def _narrower(self) -> nn.Module | None:
        """The same network at some smaller width, to see what shrinks; None: nothing does."""
        for halvings in range(1, 5):
            try:
                narrow = self._build(FULL / 2**halvings)
            except UserError:
                continue
            shapes = self._shapes(narrow)
            if shapes.keys() == self.full_shapes.keys() and shapes != self.full_shapes:
                return narrow
        return None

    def _apart(self, module: nn.Module) -> Tree:
        """Parameters as the tree has them."""
        tree: Tree = {}
        for name, p in module.named_parameters():
            tree |= parts.apart(p, self.stacks.keys.get(name, (name,)), self.blocks.orders)
        return tree

    def _shapes(self, module: nn.Module) -> Shapes:
        shapes: Shapes = {}
        for name, p in module.named_parameters():
            keys = self.stacks.keys.get(name, (name,))
            if len(keys) > 1:
                shapes |= dict.fromkeys(keys, (p.shape[0] // len(keys), *p.shape[1:]))
            else:
                shapes[keys[0]] = tuple(p.shape)
        return shapes


class _Networks(threading.local):
    """Each thread has its own."""

    def __init__(self) -> None:
        self.by_width: dict[Fraction, tuple[FunctionalModule, FunctionalModule, Shapes]] = {}
