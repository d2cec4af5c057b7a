"""The executor and a SuperLink that refuses it."""

import datetime
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from flwr.supercore import date
from machines import Machines
from serving import serving

from pa3dfl.core.errors import UserError
from pa3dfl.deploy import executor
from pa3dfl.deploy.task_runner import Link

SECRET = b"s" * 64


class Done(Exception):
    pass


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(executor.POLL, "0.01")
    return Machines(tmp_path, ["1"], method="fedavg")


def ask(machines: Machines, secret: bytes) -> None:
    with serving(machines):
        site = machines.deployment
        executor.run(Link(site.address(), site.root()), secret, lambda *_: None)


def test_another_secret(machines: Machines) -> None:
    with pytest.raises(UserError, match=r"refused the executor \(401\): restart both"):
        ask(machines, b"t" * 64)


@pytest.mark.parametrize("ahead", [[1, 1, 0, 1, 1, 0], [0, 1, 1, 1]])
def test_a_clock_that_is_set_between_signing_and_checking(
    ahead: list[int], machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor ends after three refusals in a row, not after two."""
    here, hours = threading.current_thread(), iter(ahead)

    def now(tz: datetime.tzinfo) -> datetime.datetime:
        at = datetime.datetime.now(tz)
        if threading.current_thread() is not here:
            return at
        hour = next(hours, None)
        if hour is None:
            raise Done
        return at + datetime.timedelta(hours=hour)

    with serving(machines):
        site = machines.deployment
        shifted = SimpleNamespace(datetime=SimpleNamespace(now=now), UTC=datetime.UTC)
        monkeypatch.setattr(date, "datetime", shifted)
        expected = Done if ahead[-1] == 0 else UserError
        with pytest.raises(expected):
            executor.run(Link(site.address(), site.root()), SECRET, lambda *_: None)
