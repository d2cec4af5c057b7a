"""The number of parameters that a client holds, |θ_i|, and its share of s_max, the size of the full plain model.

Where only shapes matter, the method runs on tensors without contents.
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
from pa3dfl.methods.problem import Client, LocalTraining, Problem, Task
from pa3dfl.models import Model


def held(method: Method, task: Task, client: Client, down: Tree) -> int:
    """|θ_i|: the parameters that a client receives, and those that it trains but never sends.

    A second copy of the received parameters (Ditto's) is not counted, because r is about the size of a model.
    """
    private = method.init_client(task, client)
    theta, _ = method.begin(task, client, down, private)
    return min(count(theta), count(down) + count(private))


@lru_cache(maxsize=16)
def full_size(model: Model) -> int:
    """s_max. It is equal for all methods, also for those that widen the last encoder layer."""
    plain = Model(model.factory, model.name, model.input_shape, model.classes)
    return sum(math.prod(shape) for shape in plain.shapes(Fraction(1)).values())


def share(method: Method, task: Task, client: Client, down: Tree) -> float:
    """|θ_i|/s_max of a client; only the shapes of `down` count."""
    return held(method, task, client, zeros(down, task.device)) / full_size(task.model)


@lru_cache(maxsize=256)
def held_at(method: Method, model: Model, p_min: Fraction, width: Fraction) -> int:
    """|θ_i| of a client of this width, counted without data."""
    client = Client(0, width**2, width, 1)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        task = one_client(Problem(model, p_min, 0, torch.device("cpu")), client)
        [down] = method.download(task, method.init_server(task), [client], 1)
        return held(method, task, client, down)


def strict_widths(method: Method, model: Model, p_min: Fraction, r: Sequence[Fraction]) -> list[Fraction]:
    """The largest possible width of each client, among those of the method, with |θ_i| ≤ r_i·s_max for every client."""
    possible = sorted({method.widths([w], p_min)[0] for w in candidate_widths(p_min)})
    sizes = {w: Fraction(held_at(method, model, p_min, w), full_size(model)) for w in possible}
    narrowest = min(possible, key=lambda w: sizes[w])
    for i, own in enumerate(r):
        if sizes[narrowest] > own:
            least = math.ceil(sizes[narrowest] * 10_000) / 100  # rounded up, so that it suffices
            advice = f"it would need r of at least {least:g}%" if least <= 100 else "even r = 100% would not suffice"
            raise UserError(
                f"no width of {method.name} fits client {i}: it affords {own} of {full_size(model):,} parameters, and "
                f"at width {narrowest} it would hold {int(sizes[narrowest] * full_size(model)):,}; {advice}; change "
                "--setting or --p-min, or use --capacity-rule width"
            )
    return method.widths([max(w for w in possible if sizes[w] <= own) for own in r], p_min)


def one_client(problem: Problem, client: Client, rows: int = 0) -> Task:
    """A task with this client only, and zeros as training data: methods read clients and data to make their states."""
    none, device = np.empty(0, np.int64), problem.device
    data = FederatedData(
        problem.model.blank(rows, device),
        torch.zeros(rows, dtype=torch.int64, device=device),
        [Split(np.arange(rows), none, none)],
        problem.model.classes,
        None,
        None,
        augment=False,
    )
    local = LocalTraining(epochs=1, batch=client.n, lr=0.1, lr_decay=1.0, weight_decay=5e-4, clip_norm=10.0)
    return Task(problem.model, problem.p_min, problem.seed, device, data, [client], local, dtype=problem.dtype)
