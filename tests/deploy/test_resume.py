"""A deployment that goes on after its server was gone: the same bits as without it, and nobody new."""

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import CAPACITIES, SMALL, alone, records, same, saved, state
from machines import Machines
from safetensors.torch import load_file

from pa3dfl.core.errors import UserError


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("method", ["pa3dfl", "ditto"])
def test_resume_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    """No node answers from the middle of round 2 on; the next server continues after round 1."""
    chosen = {"method": method} | SMALL.get(method, {})
    machines = Machines(tmp_path, CAPACITIES, **chosen, timeout=0.5)
    everybody = dict(machines.here)

    def before(node: int, order: dict[str, Any]) -> None:
        if order["kind"] == "train" and order["round"] == 2 and len(machines.orders) > 5:
            machines.here.clear()

    machines.before = before
    with pytest.raises(UserError):
        machines.train()
    machines.before, machines.here = lambda *_: None, everybody
    machines.train(resume=True)
    one = alone(**chosen)
    assert records(one) == records(machines.deployment.run)
    assert same(saved(one).server, saved(machines.deployment.run).server)


def test_an_unknown_node_at_resume_stays_out(tmp_path: Path) -> None:
    """The resumed run has no free client number for a new node, nor for another key under a known name."""
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=2)
    machines.train()
    machines.configure(rounds=3)
    machines.here[200] = machines.node(0, "1", name="unknown")
    machines.here[201] = machines.here.pop(102)  # node-2's name with another of Flower's numbers
    machines.train(resume=True, wait_for=2)
    assert [r["round"] for r in records(machines.deployment.run)] == [1, 2, 3]
    assert "the name 'node-2' belongs to another key" in machines.deployment.log.read_text()
    asked = {node for node, order in machines.orders if order["kind"] == "train" and order["round"] == 3}
    assert asked <= {100, 101}
    machines.configure(lr=0.5)
    with pytest.raises(UserError, match="has changed since the run began: only rounds and timeout may"):
        machines.train(resume=True)


def test_a_resumed_deployment_continues_the_same_tracked_run(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=2, track="tensorboard")
    machines.train()
    machines.configure(rounds=3)
    machines.train(resume=True)
    found = accumulator.EventAccumulator(str(machines.deployment.run / "tensorboard")).Reload()
    assert [event.step for event in found.Scalars("train_loss")] == [1, 2, 3]
    assert machines.deployment.log.read_text().count("tensorboard: tensorboard --logdir") == 2


class Killed(BaseException):
    pass


def test_a_server_killed_ten_times(tmp_path: Path) -> None:
    """Killed at random times, a run loses at most the running round each time and ends with the same bits."""
    machines = Machines(tmp_path, CAPACITIES, method="ditto", rounds=8, eval_every=4)
    rng, kills, left = random.Random(0), 0, 0

    def before(node: int, order: dict[str, Any]) -> None:
        nonlocal left
        left -= order["kind"] != "who"
        if left < 0 and kills < 10:
            raise Killed

    machines.before = before
    while True:
        left, kept = rng.randint(0, 4), len(records(machines.deployment.run)) if machines.deployment.run.exists() else 0
        try:
            machines.train(resume=machines.deployment.run.exists())
            break
        except Killed:
            kills += 1
            assert len(records(machines.deployment.run)) >= kept
    assert kills == 10
    one = alone(method="ditto", rounds=8, eval_every=4)
    assert records(one) == records(machines.deployment.run)
    assert same(saved(one).server, saved(machines.deployment.run).server)
    for i, tree in saved(one).private.items():
        receipt = int(saved(machines.deployment.run).private[i]["round"])
        assert same(tree, load_file(state(machines, i) / f"private.{receipt}.safetensors"))
