"""Keep a program running: `python keep.py PROGRAM …` starts it again when it fails, and takes it along when it ends.

A file of its own that needs nothing but Python, because it stays in memory beside the node.
"""

import contextlib
import ctypes
import signal
import subprocess
import sys
import time
from types import FrameType

SECONDS = 5
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Linux only; elsewhere a node outlives a supervisor that was killed outright."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(words: list[str]) -> int:
    child: subprocess.Popen[bytes] | None = None
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        if child is not None:
            child.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while not stopping:
        child = subprocess.Popen(words, preexec_fn=die_with_parent)
        code = child.wait()
        if stopping or code == 0:
            break
        print("pa3dfl: the server is away, or has not let this node in; trying again", file=sys.stderr, flush=True)
        time.sleep(SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
