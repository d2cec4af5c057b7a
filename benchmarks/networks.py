"""Recurrent layers and attention that are lent weights in parts, beside PyTorch's own module: forward and backward.

Both in turn in one process, on one core, in seconds of the processor: `python -m benchmarks.networks`.
"""

import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor, nn

from pa3dfl.models import Model, factory_of

CASES = {"lstm-text": ((80,), 80), "transformer-text": ((80,), 80), "transformer-sensor": ((6, 128), 12)}
BATCH, REPEATS = 20, 25


def main() -> None:
    torch.set_num_threads(1)
    for name, (shape, classes) in CASES.items():
        model = Model(factory_of(name), name, shape, classes)
        x = torch.randint(0, classes, (BATCH, *shape)) if model.whole_numbers else torch.randn(BATCH, *shape)
        for width in (Fraction(1), Fraction(1, 4)):
            params = {k: v.requires_grad_() for k, v in model.init(width, 0).items()}
            own: nn.Module = factory_of(name)(float(width), shape, classes)
            both = {
                "pa3dfl": (partial(model, params, x, width), list(params.values())),
                "PyTorch": (partial(own, x), list(own.parameters())),
            }
            times: dict[str, list[float]] = {who: [] for who in both}
            for _ in range(REPEATS):
                for who, (run, trained) in both.items():
                    times[who].append(seconds(run, trained))
            a, b = (1e3 * statistics.median(t) for t in times.values())
            print(f"{name:20} width {width!s:4} pa3dfl {a:7.2f} ms  PyTorch {b:7.2f} ms  {a / b:.3f}")


def seconds(run: Callable[[], Tensor], params: list[Tensor]) -> float:
    begun = time.process_time()
    torch.autograd.grad(run().sum(), params)
    return time.process_time() - begun


if __name__ == "__main__":
    main()
