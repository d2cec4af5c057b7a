"""The cost of a method for a client: multiply-adds, parameters, bytes and, on request, memory.

Everything but memory is counted on tensors that have shapes and no contents. `encoder_multiply_adds` follows the
paper's efficiency table: forward multiply-adds of one batch through the encoder, with the recovery of weights and
without the head (`accounting.py`). `step_multiply_adds` counts all forward passes of a local step.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pa3dfl.core.randomness import generator
from pa3dfl.core.tree import Tree, count, nbytes, on_meta
from pa3dfl.engines.accounting import encoder_forward, in_head, orders
from pa3dfl.engines.footprint import peak_training_bytes
from pa3dfl.engines.multiply_adds import META, count_of
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Client, Problem
from pa3dfl.methods.sizes import full_size, held, one_client
from pa3dfl.models import Model

CPU = torch.device("cpu")
COLUMNS = (
    "method",
    "width",
    "share",
    "encoder_multiply_adds",
    "factors_multiply_adds",
    "chosen_multiply_adds",
    "step_multiply_adds",
    "encoder_bytes",
    "bytes_down",
    "bytes_up",
    "peak_training_bytes",
)
"""The columns of the table, without `recover_multiply_adds`, which equals `encoder_multiply_adds`."""


def widths(p_min: Fraction) -> list[Fraction]:
    return [p_min * i for i in range(1, int(1 / p_min) + 1)]


def cost(
    method: Method,
    model: Model,
    p_min: Fraction,
    batch: int,
    at: Sequence[Fraction],
    memory: torch.device | None = None,
) -> list[dict[str, Any]]:
    """One record per width; with the peak training memory measured on the device `memory`, if given."""
    return [_record(method, model, p_min, batch, width, memory) for width in at]


def _record(
    method: Method, model: Model, p_min: Fraction, batch: int, width: Fraction, memory: torch.device | None
) -> dict[str, Any]:
    client = Client(0, width**2, width, batch)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        task = one_client(Problem(model, p_min, 0, CPU), client)
        private, server = method.init_client(task, client), method.init_server(task)
        [down] = method.download(task, server, [client], 1)
        theta, fixed = method.begin(task, client, down, private)
        upload, _ = method.finish(task, width, theta, fixed)
        holds = held(method, task, client, down)
    encoder = {k: v for k, v in theta.items() if not in_head(method, task, k)}
    record = {
        "method": method.name,
        "model": model.name,
        "p_min": str(p_min),
        "width": str(width),
        "r": float(width**2),
        "share": holds / full_size(model),
        "batch": batch,
        **_multiply_adds(method, Problem(model, p_min, 0, META), batch, width, on_meta(theta), on_meta(fixed)),
        "encoder_parameters": count(encoder),
        "encoder_bytes": nbytes(encoder),
        "parameters": count(theta),
        "bytes_down": nbytes(down),
        "bytes_up": nbytes(upload),
        "peak_training_bytes": None,
    }
    if memory is not None:
        task = one_client(Problem(model, p_min, 0, memory), client, rows=batch)
        start, fixed = method.begin(task, client, _filled(down, memory), _filled(private, memory))
        record["peak_training_bytes"] = peak_training_bytes(method, task, client, start, fixed)
    return record


def _multiply_adds(
    method: Method, problem: Problem, batch: int, width: Fraction, theta: Tree, fixed: Tree
) -> dict[str, int | None]:
    """Multiply-adds of the encoder by the table's convention and in each order of the method, and of a whole step."""
    x = problem.model.blank(batch, META)
    y = torch.empty(batch, dtype=torch.int64, device=META)
    draws = method.draw(problem, width, generator(0, "cost"))

    def through_encoder(m: Method) -> int:
        return count_of(lambda: encoder_forward(m, problem, width, theta, fixed, x))

    variants: dict[str, Any] = {order: {"order": order} for order in orders(method)}
    by_order = {order: through_encoder(replace(method, **given)) for order, given in variants.items()}
    return {
        "encoder_multiply_adds": by_order["recover"] if by_order else through_encoder(method),
        "recover_multiply_adds": by_order.get("recover"),
        "factors_multiply_adds": by_order.get("factors"),
        "chosen_multiply_adds": by_order.get("auto"),
        "step_multiply_adds": count_of(lambda: method.loss(problem, width, theta, fixed, (x, y), draws)),
    }


def _filled(shapes: Tree, device: torch.device) -> Tree:
    """A tree of these shapes with random values: memory does not depend on values."""
    return {k: 0.01 * torch.randn(v.shape, dtype=v.dtype, device=device) for k, v in shapes.items()}
