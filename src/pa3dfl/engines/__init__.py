"""Engines run local training and tests of clients: `sequential` (the reference), `cpu/`, `cuda/` and `flower/`.

`local` holds the work of one client, which all engines share; `guard` checks updates; `cost`, `accounting` and
`footprint` count what a method costs. Engines use methods, models, data and core. Methods know no engine.
"""

import torch

from pa3dfl.core.errors import UserError
from pa3dfl.engines.base import Engine, Round
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.engines.cuda.captured import Captured
from pa3dfl.engines.sequential import Sequential

__all__ = ["Engine", "Round", "engine_of"]


def engine_of(name: str, device: torch.device, threads: int = 1) -> Engine:
    """The engine of this name. `auto` is `captured` on a GPU and `threaded` on a CPU."""
    if name == "captured" and device.type != "cuda":
        raise UserError("engine 'captured' needs a CUDA GPU: use --engine sequential, or --device cuda where one is")
    if name == "captured" or (name == "auto" and device.type == "cuda"):
        return Captured()
    return Sequential() if name == "sequential" else Threaded(threads)
