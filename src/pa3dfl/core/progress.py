"""Progress with an estimate of the time left: a live bar on a terminal, a message now and then elsewhere."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pa3dfl.core.logging import log, messages_are_shown

# Without a terminal, at most one message in this many seconds.
QUIET_SECONDS = 10.0


def duration(seconds: float) -> str:
    s = round(seconds)
    if s >= 3600:
        return f"{s // 3600} h {s % 3600 // 60:02d} min"
    return f"{s // 60} min {s % 60:02d} s" if s >= 60 else f"{s} s"


class Meter:
    """Counts units of work (one client's local training each) towards a total."""

    def __init__(self, label: str, rounds: int, per_round: int, evaluations: int, per_evaluation: int) -> None:
        self.label = label
        self.total = rounds * per_round + evaluations * per_evaluation
        self.done = 0
        self.started = self._last_line = time.monotonic()
        self._counted_at_start = 0
        self._text = "starting"
        console = Console(file=sys.stderr)
        self._live = console.is_terminal and messages_are_shown()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"),
            console=console, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task(label, total=self.total, text=self._text)

    def __enter__(self) -> "Meter":
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._bar.stop()

    def skip_to(self, done: int) -> None:
        """Work of an earlier process counts as done; the speed is measured without it."""
        self.done = self._counted_at_start = done

    def tick(self, units: int = 1) -> None:
        self.done += units
        self._show()

    def say(self, text: str) -> None:
        self._text = text
        self._show()

    def left(self) -> str:
        worked = self.done - self._counted_at_start
        if worked == 0:
            return "estimating"
        rate = (time.monotonic() - self.started) / worked
        return f"about {duration(rate * max(self.total - self.done, 0))} left"

    def _show(self) -> None:
        if self._live:
            self._bar.update(self._task, completed=self.done, text=f"{self._text}  {self.left()}")
        elif time.monotonic() - self._last_line > QUIET_SECONDS:
            self._last_line = time.monotonic()
            log.info(f"{self.label}: {self._text}, {self.left()}")
