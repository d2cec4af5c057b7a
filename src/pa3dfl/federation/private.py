"""Clients' private state, each in the nearest place that has room: the device's memory, the host's, the disk.

A state is put somewhere when it comes back from a round; the engine moves what it needs to its device. Neither methods
nor results know the difference.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

import torch

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import read_tensors, write_tensors
from pa3dfl.core.tree import Tree, nbytes

CPU = torch.device("cpu")


class Private(MutableMapping[int, Tree]):
    def __init__(self, folder: Path, room: Mapping[torch.device, int]) -> None:
        """`room` holds the bytes that may be taken of each memory, the nearest first; the rest goes to `folder`."""
        self.folder, self.room = folder, dict(room)
        self._held: dict[int, tuple[torch.device, Tree]] = {}
        self._filed: set[int] = set()
        self._told = False
        shutil.rmtree(folder, ignore_errors=True)  # of a process that is gone: a resumed run reads checkpoints

    def __setitem__(self, client: int, tree: Tree) -> None:
        self.pop(client, None)
        size = nbytes(tree)
        for device, left in self.room.items():
            if size <= left:
                self.room[device] -= size
                self._held[client] = device, {k: v.to(device) for k, v in tree.items()}
                return
        if not self._told:
            print(f"pa3dfl: memory is full: private state of further clients is kept in {self.folder}", file=sys.stderr)
            self._told = True
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(self._file(client), tree)
        except OSError as e:
            raise UserError(
                f"private state of client {client} could not be written to {self.folder}: {e.strerror}"
            ) from e
        self._filed.add(client)

    def __getitem__(self, client: int) -> Tree:
        return read_tensors(self._file(client)) if client in self._filed else self._held[client][1]

    def __delitem__(self, client: int) -> None:
        if client in self._filed:
            self._filed.remove(client)
            self._file(client).unlink(missing_ok=True)
            return
        device, tree = self._held.pop(client)
        self.room[device] += nbytes(tree)

    def __iter__(self) -> Iterator[int]:
        yield from self._held
        yield from self._filed

    def __len__(self) -> int:
        return len(self._held) + len(self._filed)

    def _file(self, client: int) -> Path:
        return self.folder / f"client-{client}.safetensors"


def rooms(device: torch.device) -> dict[torch.device, int]:
    """A quarter of the device's free memory, as training needs most of it, and half of the host's."""
    room = {CPU: available_memory() // 2}
    return {device: torch.cuda.mem_get_info(device)[0] // 4} | room if device.type == "cuda" else room


def available_memory() -> int:
    """Bytes that the host can give without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
