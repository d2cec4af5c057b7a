"""Restarts programs when they end: `python supervisor.py PROGRAM … [-- PROGRAM …]`.

It stops them when it is stopped itself. Exit codes are ignored, because Flower's programs end with code 0 for many
reasons. This file imports only the standard library, because the process stays in memory beside the node.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from types import FrameType

SECONDS = 5
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """On Linux, end this process when its parent ends. Elsewhere programs outlive a supervisor that is killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def supervised(*programs: list[str]) -> list[str]:
    """The command that runs these programs under a supervisor."""
    joined = [word for words in programs for word in ("--", *words)]
    return [sys.executable, __file__, *joined[1:]]


def start(words: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(words[0], words)
    finally:
        os._exit(127)


def main(words: list[str]) -> int:
    programs: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            programs.append([])
        else:
            programs[-1].append(word)
    running: dict[int, list[str]] = {}
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for program in programs:
        running[start(program)] = program
    while running:
        pid, status = os.wait()
        if pid not in running:
            continue
        program = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if stopping:
            continue
        away = "the server does not answer, or has not registered this node"
        said = (
            away
            if any(word.endswith("supernode.py") for word in program)
            else f"{' '.join(program[1:4])} ended with code {code}"
        )
        # Not `core.logging`: this file imports only the standard library.
        print(f"pa3dfl: {said}; trying again", file=sys.stderr, flush=True)
        time.sleep(SECONDS)
        if not stopping:
            running[start(program)] = program
        if stopping:  # stopped during the restart
            stop(0, None)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
