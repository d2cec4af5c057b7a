"""How many clients a GPU's memory holds at a time.

Nobody guesses beforehand. What a program takes is counted while it is recorded, and before one more is made the card
is asked what it has left: other processes, data and private state are then in the answer. A client for whom there is no
room waits until another one's program is free, so that a cohort of any size ends.
"""

import sys
from collections.abc import Sequence
from fractions import Fraction

import torch

from pa3dfl.engines.cuda.program import Program

# What programs leave free: for aggregation, the hyper-network, other processes.
RESERVE = 2 << 30


class Memory:
    def __init__(self) -> None:
        self._told = False

    def has_room(self, width: Fraction, programs: Sequence[Program]) -> bool:
        """For one more, beside those that are there."""
        if not programs:
            return True
        taken = max(p.taken / p.width for p in programs) * width
        if free_memory(programs[0].device) > taken + RESERVE:
            return True
        if not self._told:
            held = "one client" if len(programs) == 1 else f"{len(programs)} clients"
            print(f"pa3dfl: the GPU holds {held} at a time; the others wait", file=sys.stderr)
            self._told = True
        return False


def free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]
