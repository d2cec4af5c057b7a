"""Progress: what a terminal shows, and one message a round elsewhere."""

import logging
import os
import pty
import subprocess
import sys
import time

import pytest
from rich.console import Console

from pa3dfl.core.progress import Meter, duration, sparkline
from pa3dfl.core.words import counted

RUN = """
from pa3dfl.core.logging import show_messages, log
from pa3dfl.core.progress import Meter
show_messages()
with Meter("ditto on dogs", 2, lambda r: 4 * r, lambda r: r) as meter:
    for rnd in (1, 2):
        meter.begin(rnd, "training", [3, 5, 7, 9])
        for _ in range(4):
            meter.tick()
        meter.end(rnd, 0.5, rnd / 4)
        meter._live.refresh()
    log.info("a message")
"""


def meter(rounds: int = 10, begun: int = 0) -> Meter:
    """Four clients train in a round; after rounds 5 and 10, ten are tested."""
    return Meter("ditto on dogs", rounds, lambda r: 4 * r + r // 5 * 10, lambda r: -(-r // 5) * 5, begun)


def shown(m: Meter, width: int = 120) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(m.lines())
    return capture.get().splitlines()


def test_a_terminal_shows_clients_progress_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    m = meter()
    assert shown(m)[2] == "evaluation in unknown time, end in unknown time"
    m.begin(1, "training", range(20))
    m.tick()
    m.tick()
    m.tick()
    now[0] = 30.0
    first, second, third = shown(m)
    assert first.startswith("ditto on dogs, round 1/10 ")
    assert first.rstrip().endswith(" 75% of the round")
    assert second == "training clients 0, 1, 2, 3, 4, 5, 6, 7 and 12 others"
    # Ten seconds a unit: 27 of 30 until the first evaluation is done, 57 of 60 until the end.
    assert third == "evaluation in about 4 min 30 s, end in about 9 min 30 s"
    m.end(1, 0.5, 0.1)
    m.end(2, 0.5, 0.8)
    assert shown(m)[2].startswith("accuracy ▁█ 80.0%, evaluation in about ")
    assert all(len(line) <= 40 for line in shown(m, width=40))


def test_without_a_terminal_each_round_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    m = meter(rounds=3, begun=1)
    with caplog.at_level(logging.INFO, "pa3dfl"), m:
        for rnd in (2, 3):
            m.begin(rnd, "training", [1, 2])
            m.tick()
            m.end(rnd, float("nan"), 0.5 if rnd == 3 else None)
    assert caplog.messages == [
        "ditto on dogs: round 2/3, loss nan, about 0 s left",
        "ditto on dogs: round 3/3, loss nan, accuracy 50.0%",
    ]


def test_a_run_in_a_terminal_and_in_a_pipe() -> None:
    """The same program: live lines that are gone at the end, or one line a round."""
    here, there = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", RUN], stderr=there, env=os.environ | {"TERM": "xterm"}) as program:
        assert program.wait(timeout=60) == 0
    text = os.read(here, 100_000).decode()
    os.close(here)
    os.close(there)
    assert "training clients 3, 5, 7, 9" in text
    assert "accuracy ▁█ 50.0%" in text
    assert "loss" not in text
    assert text.count("pa3dfl: a message") == 1
    piped = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=60, check=True)
    assert piped.stdout == ""
    lines = piped.stderr.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "pa3dfl: ditto on dogs: round 1/2",
        "pa3dfl: ditto on dogs: round 2/2",
        "pa3dfl: a message",
    ]


def test_sparklines_and_durations() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.3, 0.3]) == "▁▁"
    assert sparkline([0.0, 0.5, float("nan"), 1.0]) == "▁▅ █"
    assert [duration(s) for s in (0.4, 59.6, 61, 3600 * 2 + 60)] == ["0 s", "1 min 00 s", "1 min 01 s", "2 h 01 min"]


def test_one_thing_is_not_many() -> None:
    said = [counted(n, "update") for n in (0, 1, 2, 100_000)]
    assert said == ["0 updates", "1 update", "2 updates", "100,000 updates"]
    assert counted(1, "node holds its model", "nodes hold their model") == "1 node holds its model"
    assert counted(3, "class", "classes") == "3 classes"
