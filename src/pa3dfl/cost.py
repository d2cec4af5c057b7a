"""What a method asks of a client: multiply-adds, parameters and bytes, without training anything.

Everything runs on tensors that have shapes and no contents. The convention is that of the paper's efficiency
table: forward multiply-adds of one batch through the encoder, recovery of weights included, head left out.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from pa3dfl.methods import Method
from pa3dfl.models import Model
from pa3dfl.sizes import blank_task
from pa3dfl.task import Client
from pa3dfl.tree import count, nbytes


def widths(p_min: Fraction) -> list[Fraction]:
    return [p_min * i for i in range(1, int(1 / p_min) + 1)]


def cost(method: Method, model: Model, p_min: Fraction, batch: int, at: Sequence[Fraction]) -> list[dict[str, Any]]:
    """One record per width."""
    return [_record(method, model, p_min, batch, width) for width in at]


def _record(method: Method, model: Model, p_min: Fraction, batch: int, width: Fraction) -> dict[str, Any]:
    client = Client(0, width**2, width, batch)
    model.shapes(width)  # outside the fake mode: the network that gives structure stays real
    model.shapes(Fraction(1))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        task = blank_task(model, p_min, client)
        [down] = method.download(task, method.init_server(task), [client], 1)
        theta, fixed = method.begin(task, client, down, method.init_client(task, client))
        upload, _ = method.finish(task, width, theta, fixed)
        encoder = {k: v for k, v in theta.items() if not method.is_head(task, k)}
        x = torch.empty(batch, *model.input_shape)
        with FlopCounterMode(display=False) as counter:
            method.encoder_forward(task, width, theta, fixed, x)
        return {
            "method": method.name,
            "model": model.name,
            "p_min": str(p_min),
            "width": str(width),
            "r": float(width**2),
            "batch": batch,
            # The counter follows the convention of two operations for each multiply-add.
            "encoder_multiply_adds": counter.get_total_flops() // 2,
            "encoder_parameters": count(encoder),
            "encoder_bytes": nbytes(encoder),
            "parameters": count(theta),
            "bytes_down": nbytes(down),
            "bytes_up": nbytes(upload),
        }
