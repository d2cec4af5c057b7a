"""Real processes: nodes that come late, leave for good, or have other data and another capacity than before."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import CAPACITIES, SMALL, records
from live import ENVIRONMENT, Live, finish, pa3dfl
from machines import OPTIONS

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    options = OPTIONS | SMALL["pa3dfl"] | {"method": "pa3dfl", "per_round": 3, "timeout": 60.0, "patience": 99}
    with Live(tmp_path_factory.mktemp("changes"), CAPACITIES, **options) as live:
        live.server()
        for i in range(2):
            live.node(i)
        yield live


def width(live: Live, node: int) -> str:
    """The width of the model that the node has at the end."""
    return str(json.loads((live.deployment.nodes / f"node-{node}" / "model.json").read_text())["width"])


def begin(live: Live, *flags: str) -> subprocess.Popen[str]:
    """A training that goes on until `all_take_part` ends it; its first round is done."""
    live.configure(rounds=1000, eval_every=3)
    training = live.train("--overwrite", *flags)
    live.wait_for_round(1)
    return training


def all_take_part(live: Live, training: subprocess.Popen[str]) -> tuple[str, list[dict[str, Any]]]:
    """The training's output and its rounds, after four rounds with all three clients and an evaluation among them."""
    deadline = time.monotonic() + 400
    while [r["participants"] for r in records(live.deployment.run)[-4:]] != [[0, 1, 2]] * 4:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    live.kill("server", signal.SIGTERM)
    live.server()
    return finish(training)[1], records(live.deployment.run)


def test_a_late_node_with_a_new_width(live: Live) -> None:
    training = begin(live, "--wait-for", "2")
    live.node(2)
    live.wait_for("node-2 came later and is client 2")
    _, made = all_take_part(live, training)
    assert made[0]["participants"] == [0, 1]
    assert not any(r["rejected"] for r in made)
    assert width(live, 2) == "1/4"


def test_another_node_takes_the_place_of_one_that_left(live: Live) -> None:
    """Node 1 is killed during a round, and revoked; node-3 has another width and no state."""
    training = begin(live)
    live.kill("node-1")
    shutil.copy(live.folder / "node-1.npz", live.folder / "node-3.npz")
    live.capacities.append("1/64")
    for words in (("init", "site", "--nodes", "4"), ("register", "site"), ("revoke", "site", "node-1")):
        done = subprocess.run(
            pa3dfl("deploy", *words), cwd=live.folder, env=ENVIRONMENT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    live.node(3)
    live.wait_for("node-3 came later and is client 1 in place of node-1, whose key was unregistered")
    _, made = all_take_part(live, training)
    assert not any(r["rejected"] for r in made)
    assert width(live, 3) == "1/8"


def test_data_and_capacity_change_between_rounds(live: Live) -> None:
    """Node 0's file grows while the node runs; node 2 is started again with half the capacity."""
    training = begin(live)
    with np.load(live.folder / "node-0.npz") as f:
        np.savez(live.folder / "more.npz", x=np.concatenate([f["x"]] * 2), y=np.concatenate([f["y"]] * 2))
    (live.folder / "more.npz").replace(live.folder / "node-0.npz")
    live.kill("node-2")
    live.capacities[2] = "1/32"
    live.node(2)
    live.wait_for("node-2 has capacity 1/32 now: in this run it keeps the width of 1/16")
    out, made = all_take_part(live, training)
    assert not any(r["rejected"] for r in made)
    assert "node-0 has 64 training rows now, before 32" in out
    saved = json.loads(live.deployment.registrations.read_text())["registrations"]
    assert saved[0]["sizes"][0] == 64
    assert width(live, 2) == "1/4"
