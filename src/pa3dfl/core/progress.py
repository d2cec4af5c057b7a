"""How far a run is: a few live lines on a terminal, one message a round elsewhere."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pa3dfl.core.logging import log, messages_are_shown
from pa3dfl.core.words import counted

NAMED = 8
"""How many clients a line names at most."""
BARS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    s = round(seconds)
    if s >= 3600:
        return f"{s // 3600} h {s % 3600 // 60:02d} min"
    return f"{s // 60} min {s % 60:02d} s" if s >= 60 else f"{s} s"


def sparkline(values: Sequence[float]) -> str:
    """One bar for each number, the lowest for the smallest; a number that is not finite leaves a gap."""
    finite = [v for v in values if math.isfinite(v)]
    low, span = min(finite, default=0.0), max(finite, default=0.0) - min(finite, default=0.0)
    return "".join(BARS[round((v - low) / (span or 1) * 7)] if math.isfinite(v) else " " for v in values)


class Meter:
    """Counts units of work; a unit is one client trained or tested.

    `work(r)` is the number of units in the first r rounds. An earlier process has done `begun` rounds, which do not
    count for the speed.
    """

    def __init__(
        self, label: str, rounds: int, work: Callable[[int], int], next_evaluation: Callable[[int], int], begun: int = 0
    ) -> None:
        self.label, self.rounds, self.work, self.next_evaluation = label, rounds, work, next_evaluation
        self.round, self.doing, self.done = begun + 1, "starting", work(begun)
        self.accuracies: deque[float] = deque(maxlen=16)
        self._started, self._counted_at_start = time.monotonic(), self.done
        console = Console(file=sys.stderr)
        self.is_live = console.is_terminal and messages_are_shown()
        self._live = Live(console=console, get_renderable=self.lines, transient=True)

    def __enter__(self) -> "Meter":
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin(self, rnd: int, doing: str, clients: Sequence[int]) -> None:
        """Show what happens now, for example `training`, and to which clients."""
        more = f" and {counted(len(clients) - NAMED, 'other')}" if len(clients) > NAMED else ""
        some = "client" if len(clients) == 1 else "clients"
        self.round, self.doing = rnd, f"{doing} {some} {', '.join(map(str, clients[:NAMED]))}{more}"

    def tick(self) -> None:
        """A client is done."""
        self.done += 1

    def end(self, rnd: int, loss: float, accuracy: float | None) -> None:
        """A round is done; clients that did not answer count as done."""
        self.done = self.work(rnd)
        if accuracy is not None:
            self.accuracies.append(accuracy)
        if not self.is_live:
            measured = "" if accuracy is None else f", accuracy {100 * accuracy:.1f}%"
            left = f", {self.left(self.rounds)} left" if rnd < self.rounds else ""
            log.info(f"{self.label}: round {rnd}/{self.rounds}, loss {loss:.3f}{measured}{left}")

    def left(self, rnd: int) -> str:
        """The time until the end of a round."""
        worked = self.done - self._counted_at_start
        if worked <= 0:
            return "unknown time"
        rate = (time.monotonic() - self._started) / worked
        return f"about {duration(rate * max(self.work(rnd) - self.done, 0))}"

    def lines(self) -> Group:
        """What a terminal shows now."""
        before = self.work(self.round - 1)
        share = (self.done - before) / max(self.work(self.round) - before, 1)
        top = Table.grid(padding=(0, 1))
        top.add_row(
            Text(f"{self.label}, round {self.round}/{self.rounds}", no_wrap=True, overflow="ellipsis"),
            ProgressBar(self.work(self.rounds), self.done, width=24),
            f"{100 * min(max(share, 0), 1):.0f}% of the round",
        )
        evaluation = self.next_evaluation(self.round)
        times = f"evaluation in {self.left(evaluation)}, end in {self.left(self.rounds)}"
        if self.accuracies:
            times = f"accuracy {sparkline(self.accuracies)} {100 * self.accuracies[-1]:.1f}%, {times}"
        return Group(top, *(Text(text, no_wrap=True, overflow="ellipsis") for text in (self.doing, times)))
