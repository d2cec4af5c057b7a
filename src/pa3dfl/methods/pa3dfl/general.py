"""What all clients of Pa3dFL share: general parameters θ_u in full, biases and norms, pruned to each width, heads."""

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

# So many features a local head can take at full step: those of the CNNs.
STEADY = 192


def fresh(parts: Layout, seed: int, gains: Mapping[str, float]) -> Tree:
    """At the start; `gains` holds factors on some of the norms."""
    tree: Tree = {}
    for layer in parts.layers:
        g = generator(seed, f"theta_u:{layer.name}")
        tree[U + layer.name] = torch.empty(layer.u_shape).normal_(0, layer.R2**-0.5, generator=g)
    full = parts.model.init(Fraction(1), key(seed, "model"))
    return tree | put(PLAIN, {k: full[k] * gains.get(k, 1.0) for k in parts.plain})


def part(model: Model, server: Tree, width: Fraction) -> Tree:
    """What a client of this width receives of it."""
    return put(U, take(U, server)) | put(PLAIN, cut(take(PLAIN, server), leading_places(model, width)))


def average(model: Model, server: Tree, trees: list[Tree], widths: list[Fraction]) -> Tree:
    """The server's part after a round: each entry's mean over those who hold it, without weights."""
    plain, places = take(PLAIN, server), [leading_places(model, width) for width in widths]
    merged = merge(plain, [take(PLAIN, t) for t in trees], places, [1.0] * len(trees))
    return put(U, mean([take(U, t) for t in trees])) | put(PLAIN, merged)


def random_head(shapes: Mapping[str, tuple[int, ...]], scale: float, seed: int) -> Tree:
    """A head whose rows are uniform in ±scale/√features; 0: √3·ln(classes)."""
    head = {k: torch.zeros(shape) for k, shape in shapes.items()}
    classes, features = head["weight"].shape
    # Rows then have a length of about ln(classes), the best of those tried on 10 and on 100 classes.
    bound = (scale or math.sqrt(3) * math.log(classes)) / math.sqrt(features)
    head["weight"].uniform_(-bound, bound, generator=generator(seed, "global head"))
    return head


def local_weight(given: float, features: int) -> float:
    """Of a local head's loss. Only that head is trained by it, so that this is a factor on its step.

    The squared length of many features makes a full step swing.
    """
    return given or min(1.0, STEADY / features)
