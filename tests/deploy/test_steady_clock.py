"""The time by which Flower compares, in this process."""

import datetime
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from flwr.server.utils import validator
from flwr.supercore import date
from machines import Machines
from serving import serving

from pa3dfl.deploy.clock import Clock, make
from pa3dfl.deploy.sweep import expire_presence

T = 1_800_000_000.0


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Started when the wall clock said T and the machine had been up for 500 s."""
    monkeypatch.setattr(date, "datetime", datetime)  # Flower's own again afterwards
    monkeypatch.setattr(time, "time", lambda: T)
    up(monkeypatch, 500)
    make(tmp_path)
    return Clock(tmp_path)


def up(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("pa3dfl.deploy.clock.uptime", lambda: seconds)


def seconds(stamp: datetime.datetime) -> float:
    return stamp.timestamp()


def test_flower_gets_the_time_since_the_start(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.use()
    monkeypatch.setattr(time, "time", lambda: T + 3600)
    up(monkeypatch, 507)
    assert seconds(validator.now()) == T + 7  # imported by name, long ago
    assert validator.now().tzinfo == datetime.UTC
    assert date.isoformat8601_utc(validator.now()) == "2027-01-15T08:00:07Z"


def test_programs_share_it(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Clock(tmp_path)
    assert clock.follow(stamp(T + 3600))
    assert seconds(other.now()) == T + 3600
    monkeypatch.setattr(time, "time", lambda: T + 100)
    other.start()
    assert seconds(clock.now()) == T + 100
    make(tmp_path)  # a second start in the same folder
    Clock(tmp_path).follow(stamp(T - 3600))
    assert seconds(clock.now()) == T + 100


def stamp(at: float) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at))


@pytest.mark.parametrize(
    ("said", "now", "words"),
    [
        (stamp(T + 3600), T + 3600, "3600 s behind the server's: using the server's time"),
        (stamp(T - 86400), T - 86400, "86400 s ahead of the server's: using the server's time"),
        (stamp(T + 86401), T, "86401 s behind the server's: set the wrong clock right"),
        (stamp(T - 1e9), T, "1000000000 s ahead of the server's: set the wrong clock right"),
        (stamp(T + 1), T, ""),
        ("", T, ""),
        ("yesterday", T, ""),
        ("Fri, 99 Jan 2027 08:00:00 GMT", T, ""),
        (stamp(T).replace("2027", "99999999999999"), T, ""),
        (stamp(T + 3600).replace("GMT", ""), T, ""),
    ],
)
def test_a_node_takes_the_time_of_the_server(
    said: str, now: float, words: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A difference of at most a day is adopted. A date without a zone is refused."""
    assert clock.follow(said) == (now != T)
    assert seconds(clock.now()) == now
    assert words in caplog.text
    assert len(caplog.records) == bool(words)


def test_a_server_that_starts_with_an_earlier_time(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes can reconnect after Flower's minute, not after the hours by which the clock was ahead."""
    machines = Machines(tmp_path, ["1"], method="fedavg")
    clock.use()
    with serving(machines) as state:
        [node] = machines.here
        assert state.activate_node(node, 30.0)
        assert clock.follow(stamp(T - 7200))
        up(monkeypatch, 500 + 61)
        assert not state.activate_node(node, 30.0)
        up(monkeypatch, 500)
        expire_presence(state)
        up(monkeypatch, 500 + 59)
        assert not state.activate_node(node, 30.0)
        up(monkeypatch, 500 + 61)
        assert state.activate_node(node, 30.0)
