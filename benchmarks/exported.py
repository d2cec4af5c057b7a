"""Exported models by width: bytes, and seconds for a prediction by PyTorch and by ONNX Runtime, on one core.

Calls of the two take turns in one process. The least of many counts, in seconds of the processor, so that other work
on the machine matters little: `python -m benchmarks.exported`. It needs `pa3dfl[onnx]`.
"""

import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

from pa3dfl.models import Model, factory_of
from pa3dfl.models.alone import network
from pa3dfl.runs import formats

CASES = {"cnn-fashion": ((1, 28, 28), 10), "lstm-text": ((80,), 80), "vit-small": ((3, 32, 32), 10)}
WIDTHS = (Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1, 16))
BATCHES, CALLS, SECONDS = (1, 32), 100, 4.0
"""At least so many calls of each, and for at least so many seconds."""
WHO = ("PyTorch", "ONNX Runtime", "ratio")
COLUMNS = ("network", "width", "parameters", "safetensors", "ONNX",
           *(f"{who}, {n} row{'s' * (n > 1)}" for n in BATCHES for who in WHO))  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for name, (shape, classes) in CASES.items():
        model = Model(factory_of(name), name, shape, classes)
        for width in WIDTHS:
            print(row(model, width), flush=True)


def row(model: Model, width: Fraction) -> str:
    alone = network(model, model.init(width, 0), width)
    rows = (
        torch.randint(0, 50, (32, *model.input_shape)) if model.whole_numbers else torch.randn(32, *model.input_shape)
    )
    sizes = []
    with tempfile.TemporaryDirectory() as folder:
        for form in ("safetensors", "onnx"):
            formats.write(path := Path(folder) / formats.FILES[form], form, alone, rows)
            sizes.append(path.stat().st_size)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        times = [timed(alone, session, rows[:n]) for n in BATCHES]
    cells = [cell for a, b in times for cell in (f"{1e3 * a:.2f} ms", f"{1e3 * b:.2f} ms", f"{b / a:.2f}")]
    count = sum(p.numel() for p in alone.parameters())
    return (
        f"| {model.name} | {width} | {count:,} | " + " | ".join([*(f"{n / 1e3:,.0f} kB" for n in sizes), *cells]) + " |"
    )


@torch.inference_mode()
def timed(alone: torch.nn.Module, session: onnxruntime.InferenceSession, x: Tensor) -> tuple[float, float]:
    """The least seconds of PyTorch and of ONNX Runtime."""
    calls: list[Callable[[], object]] = [
        partial(alone, x),
        partial(session.run, None, {formats.INPUT: x.numpy()}),
    ]
    seconds: list[list[float]] = [[], []]
    while len(seconds[0]) < CALLS or sum(map(sum, seconds)) < SECONDS:
        for call, taken in zip(calls, seconds, strict=True):
            begun = time.process_time()
            call()
            taken.append(time.process_time() - begun)
    return min(seconds[0]), min(seconds[1])


if __name__ == "__main__":
    main()
