"""The time that Flower's programs use: one for a whole deployment, without jumps.

By the wall clock, Flower 1.41 decides when messages and tasks expire, which nodes are online, and how old a signature
is. Here Flower gets the wall clock of the server's start plus the time that has passed since. A node whose signature is
refused adopts the server's time (supernode.py). Delete this file and its uses when Flower uses a monotonic clock.
"""

import datetime
import mmap
import time
from collections.abc import MutableMapping
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.supercore import date

from pa3dfl.core.logging import log
from pa3dfl.deploy.access import App, Receive, Scope, Send

SECONDS = 2.0
MOST_SECONDS = 86400.0
"""Limits the times for which a server that was taken over could collect a node's signatures."""


def make(home: Path) -> None:
    """Make the clock of all programs with this home folder, in a new file: running programs keep the old one."""
    part = home / "clock.part"
    part.write_bytes(bytes(8))
    part.replace(home / "clock")
    Clock(home).start()


class Clock:
    """A time that programs share: a file holds its distance to the machine's uptime."""

    def __init__(self, home: Path) -> None:
        with (home / "clock").open("r+b") as f:
            self._distance = memoryview(mmap.mmap(f.fileno(), 8)).cast("d")

    def start(self) -> "Clock":
        """Set it by the wall clock."""
        self._distance[0] = time.time() - uptime()
        return self

    def use(self) -> "Clock":
        """Make Flower use this clock in this process: its function `now` reads `datetime.datetime`."""
        date.datetime = SimpleNamespace(datetime=self, UTC=datetime.UTC)  # type: ignore[assignment, attr-defined]
        return self

    def now(self, tz: datetime.tzinfo = datetime.UTC) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._distance[0] + uptime(), tz)

    def follow(self, server: str) -> bool:
        """Adopt the server's time, the `Date` of a response; False if this clock agrees or is too far away."""
        try:
            ahead = (parsedate_to_datetime(server) - self.now()).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return False
        if abs(ahead) < SECONDS:
            return False
        near, where = abs(ahead) <= MOST_SECONDS, "behind" if ahead > 0 else "ahead of"
        what = "using the server's time" if near else "set the wrong clock right (if the server's, restart it)"
        log.warning(f"this machine's clock is {abs(ahead):.0f} s {where} the server's: {what}")
        if near:
            self._distance[0] += ahead
        return near


def uptime() -> float:
    """Seconds since the machine's start; on Linux including suspended time."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Dated:
    """The outermost middleware: it adds the time to every response."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def dated(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                stamp = format_datetime(date.now(), usegmt=True).encode()
                event["headers"] = [*event.get("headers", ()), (b"date", stamp)]
            await send(event)

        await self.app(scope, receive, dated)
