"""Real nodes at the end of a bad line: it is cut for a minute, then slow and lossy."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from bad_network import BadNetwork
from compared import CAPACITIES, records, same, saved, survivors
from live import Live, beside, finish
from machines import OPTIONS
from other_machine import machine_for_module

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1500)]
CUT_SECONDS = 60.0
line = machine_for_module(BadNetwork)


@pytest.fixture(scope="module")
def live(line: BadNetwork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    options = OPTIONS | {"method": "ditto", "per_round": 3, "timeout": 150.0, "eval_every": 100}
    with beside(line, tmp_path_factory.mktemp("network"), CAPACITIES, **options) as live:
        yield live


def seconds(path: Path) -> list[float]:
    return [json.loads(text)["seconds"] for text in (path / "rounds.jsonl").read_text().splitlines()]


def test_a_minute_without_network(line: BadNetwork, live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds go on without the nodes behind the line, which come back with their state."""
    live.configure(rounds=24)
    training = live.train("--overwrite")
    live.wait_for_round(2)
    line.cut()
    time.sleep(CUT_SECONDS)
    line.mend()
    code, out = finish(training)
    assert code == 0, out
    made = records(live.deployment.run)
    missing = [r["missing"] for r in made]
    with capsys.disabled():
        took = [round(s) for s in seconds(live.deployment.run)]
        print(f"\ncut for {CUT_SECONDS:.0f} s: missing {missing}, seconds {took}")
    assert [r["rejected"] for r in made] == [[]] * 24
    assert missing[0] == missing[-1] == []
    assert any(missing), "the cut was not noticed"
    assert same(survivors(live.folder, CAPACITIES, missing)[0], saved(live.deployment.run).server)


def test_a_slow_line_that_loses_packets(line: BadNetwork, live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    """100 ms each way and 1% of the packets lost, beside the same line when it is good."""
    took = {}
    for name, line.delay, line.loss in (("good", 0.0, 0.0), ("bad", 0.1, 0.01)):
        live.configure(rounds=6)
        before = line.lost
        code, out = finish(live.train("--overwrite"))
        assert code == 0, out
        made = records(live.deployment.run)
        assert [(r["rejected"], r["missing"]) for r in made] == [([], [])] * 6
        assert same(survivors(live.folder, CAPACITIES, [[]] * 6)[0], saved(live.deployment.run).server)
        took[name] = sorted(seconds(live.deployment.run))[3]
        with capsys.disabled():
            print(f"\n{name} line: {took[name]:.1f} s a round, {line.lost - before} packets lost")
    assert line.lost > before
