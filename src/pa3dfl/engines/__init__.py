"""Engines: different ways to do the same local work. Methods know none of them."""

import torch

from pa3dfl.core.errors import UserError
from pa3dfl.engines.base import Engine, Round
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.engines.cuda.captured import Captured
from pa3dfl.engines.sequential import Sequential

__all__ = ["Engine", "Round", "engine_of"]


def engine_of(name: str, device: torch.device, threads: int = 1) -> Engine:
    """`auto` replays captured steps on a GPU and trains a client per thread on a CPU."""
    if name == "captured" and device.type != "cuda":
        raise UserError("engine 'captured' needs a CUDA GPU: use --engine sequential, or --device cuda where one is")
    if name == "captured" or (name == "auto" and device.type == "cuda"):
        return Captured()
    return Sequential() if name == "sequential" else Threaded(threads)
