"""How many parameters a client holds: |θ_i|, and its share of s_max, the plain model at full width.

Where only shapes matter, everything runs on tensors that have no contents.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.capacity import candidate_widths
from pa3dfl.core.tree import Tree, count, zeros
from pa3dfl.data import FederatedData, Split
from pa3dfl.methods import Method
from pa3dfl.methods.task import Client, LocalTraining, Task
from pa3dfl.models import Model


def held(method: Method, task: Task, client: Client, down: Tree) -> int:
    """|θ_i|: what a client receives, and what it trains without ever sending it.

    A second copy that it makes of what it received (Ditto's) is not counted: r is about the size of a model.
    """
    private = method.init_client(task, client)
    theta, _ = method.begin(task, client, down, private)
    return min(count(theta), count(down) + count(private))


@lru_cache(maxsize=16)
def full_size(model: Model) -> int:
    """s_max: one for all methods, also for those that widen the last encoder layer."""
    plain = Model(model.factory, model.name, model.input_shape, model.classes)
    return sum(math.prod(shape) for shape in plain.shapes(Fraction(1)).values())


def share(method: Method, task: Task, client: Client, down: Tree) -> float:
    """|θ_i|/s_max of a client; of what it receives, only the shapes count."""
    return held(method, task, client, zeros(down, task.device)) / full_size(task.model)


@lru_cache(maxsize=256)
def held_at(method: Method, model: Model, p_min: Fraction, width: Fraction) -> int:
    """|θ_i| of a client of this width, before there is any data."""
    client = Client(0, width**2, width, 1)
    model.shapes(width)  # outside the fake mode: the network that gives structure stays real
    model.shapes(Fraction(1))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        task = blank_task(model, p_min, client)
        [down] = method.download(task, method.init_server(task), [client], 1)
        return held(method, task, client, down)


def strict_widths(method: Method, model: Model, p_min: Fraction, r: Sequence[Fraction]) -> list[Fraction]:
    """The widest that each client affords of those that the method has, with |θ_i| ≤ r_i·s_max for all of them."""
    possible = sorted({method.widths([w], p_min)[0] for w in candidate_widths(p_min)})
    sizes = {w: Fraction(held_at(method, model, p_min, w), full_size(model)) for w in possible}
    narrowest = min(possible, key=lambda w: sizes[w])
    for i, own in enumerate(r):
        if sizes[narrowest] > own:
            least = math.ceil(sizes[narrowest] * 10_000) / 100  # rounded up: it must be enough
            advice = f"it would need r of at least {least:g}%" if least <= 100 else "even r = 100% would not do"
            raise UserError(
                f"no width of {method.name} fits client {i}: it affords {own} of {full_size(model):,} parameters, and "
                f"at width {narrowest} it would hold {int(sizes[narrowest] * full_size(model)):,}; {advice}; change "
                "--setting or --p-min, or use --capacity-rule width"
            )
    return method.widths([max(w for w in possible if sizes[w] <= own) for own in r], p_min)


def blank_task(
    model: Model, p_min: Fraction, client: Client, rows: int = 0, device: torch.device | None = None
) -> Task:
    """A task of one client, with as many rows of nothing."""
    device = device or torch.device("cpu")
    none, mine = np.empty(0, np.int64), np.arange(rows)
    data = FederatedData(
        model.blank(rows, device),
        torch.zeros(rows, dtype=torch.int64, device=device),
        [Split(mine, none, none)],
        model.classes,
        None,
        None,
        augment=False,
    )
    local = LocalTraining(epochs=1, batch=client.n, lr=0.1, lr_decay=1.0, weight_decay=5e-4, clip_norm=10.0)
    return Task(model, data, [client], p_min, local, seed=0, device=device)
