"""The clock of the machine jumps by an hour in the middle of a round."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from clock import Clock
from compared import CAPACITIES, records, same, saved, survivors
from live import Live, finish
from machines import OPTIONS

NO_CLOCK = Clock.why_not()
pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(NO_CLOCK is not None, reason=str(NO_CLOCK)),
]
HOUR = 3600


@pytest.fixture
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def live(clock: Clock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    options = OPTIONS | {"method": "ditto", "per_round": 3, "timeout": 120.0, "eval_every": 4}
    with Live(tmp_path_factory.mktemp("jumps"), CAPACITIES, **options) as live:
        live.environment |= clock.environment
        live.server()
        for i in range(3):
            live.node(i)
        yield live


def test_the_clock_of_the_tests_moves(clock: Clock) -> None:
    code = "import time; print(time.time(), time.monotonic())"
    clock.jump(HOUR)
    out = subprocess.run(
        [sys.executable, "-c", code], env=clock.environment, capture_output=True, text=True, check=True
    )
    wall, monotonic = map(float, out.stdout.split())
    assert abs(wall - time.time() - HOUR) < 60
    assert abs(monotonic - time.monotonic()) < 60


def test_a_training_goes_on_after_the_clock_has_jumped(clock: Clock, live: Live) -> None:
    """By an hour, forwards and then back: Flower may end the training; resumed, it comes to the same bits."""
    live.configure(rounds=8)
    training, stops = live.train("--overwrite"), 0
    for number, ahead in ((1, HOUR), (4, 0)):
        live.wait_for_round(number, 400)
        clock.jump(ahead)
        code, out = (0, "") if number == 4 else finish(training)
        if code:
            assert "--resume" in out.splitlines()[-1], out
            training, stops = live.train("--resume"), stops + 1
    code, out = finish(training)
    if code:
        assert "--resume" in out.splitlines()[-1], out
        code, out = finish(live.train("--resume"))
    assert code == 0, out
    made = records(live.deployment.run)
    assert [r["round"] for r in made] == [*range(1, 9)]
    assert [r["rejected"] for r in made] == [[]] * 8
    missing = [r["missing"] for r in made]
    assert same(survivors(live.folder, CAPACITIES, missing)[0], saved(live.deployment.run).server)
