"""The parts of Pa3dFL that all clients share: θ_u in full, biases and norms pruned to each width, and the heads."""

import math
from collections.abc import Mapping
from fractions import Fraction

import torch

from pa3dfl.core.randomness import generator, key
from pa3dfl.core.tree import Tree, mean, put, take
from pa3dfl.methods.common.slicing import cut, leading_places, merge
from pa3dfl.methods.pa3dfl.decomposition import Layout
from pa3dfl.models import Model

U, PLAIN = "theta_u/", "plain/"

# The largest feature count at which local heads are stable with the full step size (that of the CNNs).
STEADY = 192


def fresh(parts: Layout, seed: int, gains: Mapping[str, float]) -> Tree:
    """The initial θ_u, biases and norms; `gains` holds factors on some of the norms."""
    tree: Tree = {}
    for layer in parts.layers:
        g = generator(seed, f"theta_u:{layer.name}")
        tree[U + layer.name] = torch.empty(layer.u_shape).normal_(0, layer.R2**-0.5, generator=g)
    full = parts.model.init(Fraction(1), key(seed, "model"))
    return tree | put(PLAIN, {k: full[k] * gains.get(k, 1.0) for k in parts.plain})


def part(model: Model, server: Tree, width: Fraction) -> Tree:
    """The part of the server's state that a client of this width receives."""
    return put(U, take(U, server)) | put(PLAIN, cut(take(PLAIN, server), leading_places(model, width)))


def average(model: Model, server: Tree, trees: list[Tree], widths: list[Fraction]) -> Tree:
    """The shared part after a round: each entry's unweighted mean over the clients that hold it."""
    plain, places = take(PLAIN, server), [leading_places(model, width) for width in widths]
    merged = merge(plain, [take(PLAIN, t) for t in trees], places, [1.0] * len(trees))
    return put(U, mean([take(U, t) for t in trees])) | put(PLAIN, merged)


def random_head(shapes: Mapping[str, tuple[int, ...]], scale: float, seed: int) -> Tree:
    """A head with rows uniform in ±scale/√features; a scale of 0 means √3·ln(classes)."""
    head = {k: torch.zeros(shape) for k, shape in shapes.items()}
    classes, features = head["weight"].shape
    # The default gives rows of length about ln(classes), the best length of those tried on 10 and on 100 classes.
    bound = (scale or math.sqrt(3) * math.log(classes)) / math.sqrt(features)
    head["weight"].uniform_(-bound, bound, generator=generator(seed, "global head"))
    return head


def local_weight(given: float, features: int) -> float:
    """The weight of the local head's loss. This loss trains only that head, so the weight scales the head's step.

    With many features, the squared length of a feature vector makes a full step oscillate.
    """
    return given or min(1.0, STEADY / features)
