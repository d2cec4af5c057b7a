"""The store of the clients' private states: each is in the device's memory, in the host's, or on disk.

When the server accepts a state, it goes to the first of these with enough free memory. The engine moves it to its
device when its client trains or is tested. Results do not depend on where a state is.

The other stores of private states follow other rules: `checkpoint` keeps what a resumed run reads, and a Flower
node keeps its own client's states (`engines.flower.state_store`); the server has only receipts for them.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

import torch

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import read_tensors, write_tensors
from pa3dfl.core.logging import log
from pa3dfl.core.tree import Tree, nbytes

CPU = torch.device("cpu")


class ClientStates(MutableMapping[int, Tree]):
    def __init__(self, folder: Path, free: Mapping[torch.device, int]) -> None:
        """`free` holds the bytes that states may take of each memory, fastest first; the rest goes to `folder`."""
        self.folder, self.free = folder, dict(free)
        self._in_memory: dict[int, tuple[torch.device, Tree]] = {}
        self._on_disk: set[int] = set()
        self._warned = False
        # Files of a process that has ended are of no use: a resumed run reads checkpoints.
        shutil.rmtree(folder, ignore_errors=True)

    def __setitem__(self, client: int, tree: Tree) -> None:
        self.pop(client, None)
        size = nbytes(tree)
        for device, free in self.free.items():
            if size <= free:
                self.free[device] -= size
                self._in_memory[client] = device, {k: v.to(device) for k, v in tree.items()}
                return
        if not self._warned:
            log.warning(f"memory is full: private state of further clients is kept in {self.folder}")
            self._warned = True
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(self._file(client), tree)
        except OSError as e:
            raise UserError(
                f"private state of client {client} could not be written to {self.folder}: {e.strerror}"
            ) from e
        self._on_disk.add(client)

    def __getitem__(self, client: int) -> Tree:
        return read_tensors(self._file(client)) if client in self._on_disk else self._in_memory[client][1]

    def __delitem__(self, client: int) -> None:
        if client in self._on_disk:
            self._on_disk.remove(client)
            self._file(client).unlink(missing_ok=True)
            return
        device, tree = self._in_memory.pop(client)
        self.free[device] += nbytes(tree)

    def __iter__(self) -> Iterator[int]:
        yield from self._in_memory
        yield from self._on_disk

    def __len__(self) -> int:
        return len(self._in_memory) + len(self._on_disk)

    def _file(self, client: int) -> Path:
        return self.folder / f"client-{client}.safetensors"


def memory_limits(device: torch.device) -> dict[torch.device, int]:
    """Bytes for states: a quarter of a GPU's free memory, as training needs most of it, then half of the host's."""
    host = {CPU: available_memory() // 2}
    return {device: torch.cuda.mem_get_info(device)[0] // 4} | host if device.type == "cuda" else host


def available_memory() -> int:
    """Bytes that the host can give without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
