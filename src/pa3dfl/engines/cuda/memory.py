"""Decides whether the GPU's memory suffices for one more program.

A program's memory is measured during capture. Before a new one is made, the GPU reports its free memory, which accounts
for other processes, data and private state. If it does not suffice, the client waits until another one's program is
free, so that a cohort of any size completes.
"""

from collections.abc import Sequence
from fractions import Fraction

import torch

from pa3dfl.core.logging import log
from pa3dfl.engines.cuda.program import Program

# Bytes that programs leave free for aggregation, the hyper-network and other processes.
RESERVE = 2 << 30


class Memory:
    def __init__(self) -> None:
        self._told = False

    def fits(self, width: Fraction, programs: Sequence[Program]) -> bool:
        """Whether a program of this width fits beside the existing ones."""
        if not programs:
            return True
        taken = max(p.taken / p.width for p in programs) * width
        if free_memory(programs[0].device) > taken + RESERVE:
            return True
        if not self._told:
            held = "one client" if len(programs) == 1 else f"{len(programs)} clients"
            log.warning(f"the GPU holds {held} at a time; the others wait")
            self._told = True
        return False


def free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]
