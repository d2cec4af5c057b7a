"""Peak memory of a process and its children, pages that they share counted once."""

import contextlib
import subprocess
import threading
from pathlib import Path


class Watch:
    """Looks at a running process twice a second, which costs it nothing; `peak_mb` is the most that was seen."""

    def __init__(self, process: "subprocess.Popen[str]", every: float = 0.5) -> None:
        self.process, self.every, self.peak_mb = process, every, 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        self._done.set()
        self._thread.join()
        return self.peak_mb

    def _look(self) -> None:
        while not self._done.wait(self.every):
            self.peak_mb = max(self.peak_mb, sum(map(proportional_mb, family(self.process.pid))))


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = stat.read_text().rpartition(")")[2].split()[1]  # a name may hold blanks and brackets
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = [pid]
    for p in found:
        found += children.get(p, [])
    return found


def proportional_mb(pid: int) -> float:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024
    return 0.0
