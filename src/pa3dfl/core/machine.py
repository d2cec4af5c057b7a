"""The machine and the code of a measurement: the processor or GPU, and the commit."""

import functools
import platform
import subprocess
from pathlib import Path

import torch


@functools.cache
def processor(device: str) -> str:
    """The name of the processor or GPU."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "cpu"


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@functools.cache
def commit() -> str | None:
    """The commit of this package, with a + if files have changed since; None outside a repository of this package."""
    here = Path(__file__).parent.parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed package may lie inside another repository.
    if not git("ls-files", "--error-unmatch", "core/machine.py"):
        return None
    head = git("rev-parse", "--short=12", "HEAD")
    return head and head + ("+" if git("status", "--porcelain", "--", ".") else "")
