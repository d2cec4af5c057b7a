"""A network at many widths: its shapes, head and layers are inferred from its factory.

A factory is `make(width, ...) -> nn.Module`. It gets the keywords `input_shape`, `num_classes` and `full_features`
if its signature has them. A comparison of the shapes at two widths shows which dimensions scale.
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
from pa3dfl.models import checks, initialisation, inspection, stacked
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
        self, factory: Callable[..., nn.Module], name: str, input_shape: tuple[int, ...], classes: int,
        full_features: bool = False, rule: str = "he",
    ) -> None:  # fmt: skip
        self.factory, self.name = factory, name
        self.input_shape, self.classes = tuple(input_shape), classes
        self.full_features, self.rule = full_features, rule
        try:
            self._keywords = set(inspect.signature(factory).parameters)
        except (TypeError, ValueError):  # builtins have no signature
            self._keywords = set()
        self._networks = _Networks()
        self._building = threading.RLock()
        full = self.build(FULL)
        inspection.check_supported(name, full)
        self.stacks = stacked.stacks(full)
        self.full_shapes: Shapes = self._shapes(full)
        self.normalised, self.tables = inspection.normalised(full), inspection.tables(full)
        batch = inspection.zero_batch(full, self.input_shape)
        self.drops_out = bool(dropouts(full))
        self.whole_numbers = not batch.is_floating_point()
        self.layers, self.head = inspection.layers(name, full, batch, classes, self.stacks.layers)
        checks.own_head(name, self.head, self.full_shapes, full_features)
        narrow = self._narrower()
        heads = head_blocks(self.stacks, None if narrow is None else stacked.stacks(narrow), self.full_shapes)
        once = FunctionalModule(full, self.stacks.keys, heads.orders)
        self._narrow_shapes = None if narrow is None else self._shapes(narrow)
        self.blocks = all_blocks(self, heads, lambda params: once(params, batch), narrow, batch)

    def check(self, p_min: Fraction) -> None:
        """Raise an error if the model cannot be pruned to `p_min`: it names the layer and what to change."""
        if p_min == FULL:
            return
        narrow = self._shapes(self.build(p_min))
        if narrow == self.full_shapes:
            raise UserError(
                f"model {self.name!r} ignores its width: it has the same shapes at width {p_min} and 1; "
                "multiply its hidden sizes by the factory's first argument"
            )
        checks.parts(self.name, self.blocks)
        self.shapes(p_min)

    def shapes(self, width: Fraction) -> Shapes:
        """Parameter shapes at a width."""
        return self._network(width)[2]

    def is_layer(self, name: str) -> bool:
        """Whether a parameter is the weight of a convolution or linear layer of the encoder."""
        return name.removesuffix(".weight") in self.layers and name.endswith(".weight")

    def outputs(self, layer: str) -> int:
        """The number of output channels of a layer or an embedding at full width."""
        return self.full_shapes[f"{layer}.weight"][layer in self.tables]

    def shrinks(self, layer: str) -> bool:
        """Whether a narrow network has fewer output channels of a layer or an embedding."""
        narrow = self._narrow_shapes
        return narrow is None or narrow[f"{layer}.weight"][layer in self.tables] < self.outputs(layer)

    def takes(self, name: str) -> list[int]:
        """The dimensions of a parameter that are input channels."""
        owner, _, what = name.rpartition(".")
        if owner in self.layers or owner == self.head:
            return [1] if what == "weight" else []
        shape, narrow = self.full_shapes[name], self._narrow_shapes
        if narrow is None or len(shape) < 2:
            return [0][: len(shape)]
        return [d for d, n in enumerate(shape) if n != narrow[name][d]][:1]

    @cached_property
    def without_relu(self) -> frozenset[str]:
        """Layers without a ReLU after them: the head, gates, and the projections of attention."""
        return frozenset([self.head, *(n for of in self.stacks.layers.values() for n in of)])

    def init(self, width: Fraction, seed: int) -> Tree:
        """Initial parameters, a function of the seed alone.

        Layers and head follow the model's rule. All other parameters keep the values that the factory gave them.
        """
        # A factory draws from the global generator, which all threads share.
        with self._building, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build(width)
        made, shapes = self._split(module), self.shapes(width)
        # A layer that `_widened` made larger has no initial values yet.
        params = {k: made[k].detach().clone() if made[k].shape == s else torch.empty(s) for k, s in shapes.items()}
        return params | initialisation.draw(self.rule, params, self.layers, self.without_relu, seed)

    def __call__(self, params: Mapping[str, Tensor], x: Tensor, width: Fraction) -> Tensor:
        return self._network(width)[0](params, self._as_input(x, params))

    def features(self, params: Mapping[str, Tensor], x: Tensor, width: Fraction) -> Tensor:
        """The encoder's output, in the order of the columns of the head's weight."""
        features = self._network(width)[1](params, self._as_input(x, params))
        return stacked.in_tree_order(features, self.blocks.orders.get(f"{self.head}.weight", (1, 1))[1])

    @contextmanager
    def drawing(self, seed: int) -> Iterator[None]:
        """Within the block dropout is on and follows the seed; outside it is off. One thread at a time."""
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

    def _as_input(self, x: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """A batch with the type that the network needs: tokens stay whole numbers, other numbers become floats."""
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
            # Factories and dropout draw random numbers: they must not shift the random numbers of a step.
            # While costs are counted, PyTorch makes fake tensors: the network is kept, so it must not consist of them.
            with self._building, torch.random.fork_rng(devices=[]), unset_fake_temporarily():
                module = self.build(width)
                shapes = self._shapes(module)
                checks.shapes_at(self.name, width, shapes, self.full_shapes)
                checks.heads_at(self.name, width, stacked.stacks(module).heads, self.stacks, self.blocks)
                if self.full_features and "full_features" not in self._keywords:
                    shapes = self._widened(width, module, shapes)
                encoder = copy.deepcopy(module)
                encoder.set_submodule(self.head, nn.Identity())
                how = (self.stacks.keys, self.blocks.orders)
                networks[width] = (FunctionalModule(module, *how), FunctionalModule(encoder, *how), shapes)
        return networks[width]

    def build(self, width: Fraction) -> nn.Module:
        known = {"input_shape": self.input_shape, "num_classes": self.classes, "full_features": self.full_features}
        kwargs = {k: v for k, v in known.items() if k in self._keywords}
        try:
            # Factories copy layers, and PyTorch frees memory twice after a copy of a fake tensor.
            with warnings.catch_warnings(), unset_fake_temporarily():
                # A layer without outputs raises a UserError later.
                warnings.filterwarnings("ignore", "Initializing zero-element tensors")
                module = self.factory(float(width), **kwargs)
        except Exception as e:  # a user's factory may raise anything
            raise UserError(f"model {self.name!r} cannot be built at width {width}: {inspection.one_line(e)}") from e
        if not isinstance(module, nn.Module):
            raise UserError(f"model {self.name!r} gave a {type(module).__name__}: expected a torch.nn.Module")
        return module

    def _widened(self, width: Fraction, module: nn.Module, shapes: Shapes) -> Shapes:
        """Shapes with the last encoder layer at full output, for a factory without the keyword `full_features`.

        Linear layers and convolutions accept weights of any size. So this works unless something with a fixed size
        stands between that layer and the head; one call shows it.
        """
        last, full = self.layers[-1], self.full_shapes
        if any(last in of for of in self.stacks.layers.values()):
            return shapes
        kept = [k for k in (f"{last}.weight", f"{last}.bias") if k in shapes]
        wide = shapes | {k: (full[k][0], *shapes[k][1:]) for k in kept}
        wide[f"{self.head}.weight"] = full[f"{self.head}.weight"]
        weights = {k: torch.zeros(wide[k]) for k in (*kept, f"{self.head}.weight")}
        try:
            inspection.forward(self.name, module, weights, self.blank(2), width)
        except UserError:
            return shapes
        return wide

    def _narrower(self) -> nn.Module | None:
        """The same network at a smaller width, to see which sizes shrink; None if none does."""
        for halvings in range(1, 5):
            try:
                narrow = self.build(FULL / 2**halvings)
            except UserError:
                continue
            shapes = self._shapes(narrow)
            if shapes.keys() == self.full_shapes.keys() and shapes != self.full_shapes:
                return narrow
        return None

    def _split(self, module: nn.Module) -> Tree:
        """A network's parameters as entries of the tree."""
        tree: Tree = {}
        for name, p in module.named_parameters():
            tree |= stacked.split(p, self.stacks.keys.get(name, (name,)), self.blocks.orders)
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
