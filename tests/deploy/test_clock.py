"""Clocks that jump by hours in the middle of a training, and nodes with wrong clocks."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from clock import Clock
from compared import CAPACITIES, records, same, saved, survivors
from live import ENVIRONMENT, Live, finish
from machines import OPTIONS

NO_CLOCK = Clock.why_not()
pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(NO_CLOCK is not None, reason=str(NO_CLOCK)),
]
HOUR = 3600
WHO = ("server", "node-0", "node-1", "node-2")


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Clock]:
    """Each machine has a clock of its own; node-1's is an hour behind from the start, node-2's an hour ahead."""
    clocks = {who: Clock(tmp_path_factory.mktemp(f"clock-{who}")) for who in WHO}
    clocks["node-1"].jump(-HOUR)
    clocks["node-2"].jump(HOUR)
    return clocks


@pytest.fixture(scope="module")
def live(clocks: dict[str, Clock], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    options = OPTIONS | {"method": "ditto", "per_round": 3, "timeout": 120.0, "eval_every": 4}
    with Live(tmp_path_factory.mktemp("jumps"), CAPACITIES, **options) as live:
        for i, who in enumerate(WHO):
            live.environment = ENVIRONMENT | clocks[who].environment
            live.node(i - 1) if i else live.server()
        live.environment = ENVIRONMENT | clocks["server"].environment
        yield live


def nothing_lost(live: Live, rounds: int) -> None:
    made = records(live.deployment.run)
    assert [r["round"] for r in made] == [*range(1, rounds + 1)]
    assert [(r["missing"], r["rejected"]) for r in made] == [([], [])] * rounds
    assert same(survivors(live.folder, CAPACITIES, [[]] * rounds)[0], saved(live.deployment.run).server)


def test_the_clock_of_the_tests_moves(tmp_path: Path) -> None:
    clock, code = Clock(tmp_path), "import time; print(time.time(), time.monotonic())"
    clock.jump(HOUR)
    out = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | clock.environment, capture_output=True, text=True, check=True
    )
    wall, monotonic = map(float, out.stdout.split())
    assert abs(wall - time.time() - HOUR) < 60
    assert abs(monotonic - time.monotonic()) < 60


def test_a_training_goes_on(clocks: dict[str, Clock], live: Live) -> None:
    """The server's clock jumps an hour forwards, then two back; then a node's clock jumps: no round loses a client."""
    live.configure(rounds=8)
    training = live.train("--overwrite")
    live.wait_for_round(1, 400)
    away = [live.log(who).count("trying again") for who in WHO]  # before the server was there
    for number, who, ahead in ((1, "server", HOUR), (3, "server", -HOUR), (5, "node-0", HOUR), (6, "node-0", -HOUR)):
        live.wait_for_round(number, 400)
        clocks[who].jump(ahead)
    code, out = finish(training)
    assert code == 0, out
    nothing_lost(live, 8)
    for i, where in enumerate((None, "behind", "ahead of")):
        said = [line for line in live.log(f"node-{i}").splitlines() if "this machine's clock" in line]
        assert bool(said) == (where is not None), said
        assert all(f"{where} the server's: using the server's time" in line for line in said)
    assert away == [live.log(who).count("trying again") for who in WHO]


def test_a_server_that_starts_again_with_another_time(clocks: dict[str, Clock], live: Live) -> None:
    """The restarted server uses its wrong clock. The connected nodes adopt its time."""
    live.configure(rounds=2)
    live.kill("server")
    live.server()
    code, out = finish(live.train("--overwrite"))
    assert code == 0, out
    nothing_lost(live, 2)


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (30, "pa3dfl: this machine's clock is 259.... s ahead of the server's: set the wrong clock right"),
        (-30, "pa3dfl: by this machine's clock the server's certificate is not valid: set the clock"),
    ],
)
def test_a_node_whose_clock_is_days_off(days: int, said: str, clocks: dict[str, Clock], live: Live) -> None:
    """The node warns; it connects when its clock is set, without a restart."""
    clocks["node-0"].jump(days * 24 * HOUR)
    live.kill("node-0", signal.SIGTERM)
    (live.folder / "node-0.log").unlink()
    live.environment = ENVIRONMENT | clocks["node-0"].environment
    live.node(0)
    wait_for(live, said)
    assert "SuperNode ID" not in live.log("node-0")
    clocks["node-0"].jump(0)
    wait_for(live, "SuperNode ID")


def wait_for(live: Live, said: str) -> None:
    deadline = time.monotonic() + 120
    while not re.search(said, live.log("node-0")):
        assert time.monotonic() < deadline, live.log("node-0")
        time.sleep(0.5)
