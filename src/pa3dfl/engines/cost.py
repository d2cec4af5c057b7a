"""What a method asks of a client: multiply-adds, parameters, bytes and, if asked, memory.

All but memory is counted on tensors that have shapes and no contents. The convention of `encoder_…` is that of the
paper's efficiency table: forward multiply-adds of one batch through the encoder, recovery of weights included,
head left out. What a local step really takes, with every forward pass, is `step_multiply_adds`.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from pa3dfl.core.rng import generator
from pa3dfl.core.tree import Tree, count, nbytes, on_meta
from pa3dfl.engines.footprint import peak_training_bytes
from pa3dfl.methods import Method
from pa3dfl.methods.sizes import blank_task, full_size, held
from pa3dfl.methods.task import Client, Task
from pa3dfl.models import Model

META = torch.device("meta")
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
"""Of the table; `recover_multiply_adds` would be `encoder_multiply_adds` again."""


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
    """One record per width; with peak training memory as measured on a device, if one is given."""
    return [_record(method, model, p_min, batch, width, memory) for width in at]


def _record(
    method: Method, model: Model, p_min: Fraction, batch: int, width: Fraction, memory: torch.device | None
) -> dict[str, Any]:
    client = Client(0, width**2, width, batch)
    for w in widths(p_min):  # outside the fake mode: the networks that give structure stay real
        model.shapes(w)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        task = blank_task(model, p_min, client)
        private, server = method.init_client(task, client), method.init_server(task)
        [down] = method.download(task, server, [client], 1)
        theta, fixed = method.begin(task, client, down, private)
        upload, _ = method.finish(task, width, theta, fixed)
        holds = held(method, task, client, down)
    encoder = {k: v for k, v in theta.items() if not method.is_head(task, k)}
    record = {
        "method": method.name,
        "model": model.name,
        "p_min": str(p_min),
        "width": str(width),
        "r": float(width**2),
        "share": holds / full_size(model),
        "batch": batch,
        **_multiply_adds(method, blank_task(model, p_min, client, device=META), width, on_meta(theta), on_meta(fixed)),
        "encoder_parameters": count(encoder),
        "encoder_bytes": nbytes(encoder),
        "parameters": count(theta),
        "bytes_down": nbytes(down),
        "bytes_up": nbytes(upload),
        "peak_training_bytes": None,
    }
    if memory is not None:
        task = blank_task(model, p_min, client, batch, memory)
        start, fixed = method.begin(task, client, _filled(down, memory), _filled(private, memory))
        record["peak_training_bytes"] = peak_training_bytes(method, task, client, start, fixed)
    return record


def _multiply_adds(method: Method, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> dict[str, int | None]:
    """By the efficiency table's convention, in each order that the method offers, and of a whole step."""
    batch = task.clients[0].n
    x = task.model.blank(batch, META)
    y = torch.empty(batch, dtype=torch.int64, device=META)
    noise = method.draw(task, width, generator(0, "cost"))

    def through_encoder(m: Method) -> int:
        return count_of(lambda: m.encoder_forward(task, width, theta, fixed, x))

    orders = [{f.name: o} for f in fields(method) if f.name == "order" for o in f.metadata["choices"]]
    by_order = {given["order"]: through_encoder(replace(method, **given)) for given in orders}
    return {
        "encoder_multiply_adds": by_order[method.charged_order] if by_order else through_encoder(method),
        "recover_multiply_adds": by_order.get("recover"),
        "factors_multiply_adds": by_order.get("factors"),
        "chosen_multiply_adds": by_order.get("auto"),
        "step_multiply_adds": count_of(lambda: method.loss(task, width, theta, fixed, (x, y), noise)),
    }


def count_of(run: Callable[[], Tensor]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    # The counter follows the convention of two operations for each multiply-add.
    return int(counter.get_total_flops()) // 2


def _filled(shapes: Tree, device: torch.device) -> Tree:
    """Values do not matter for memory, and a server's whole state may be too large to make."""
    return {k: 0.01 * torch.randn(v.shape, dtype=v.dtype, device=device) for k, v in shapes.items()}
