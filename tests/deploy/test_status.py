"""What `pa3dfl deploy status` says, with a real SuperLink and the files of a real training."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import CAPACITIES, records
from machines import Machines
from serving import serving

from pa3dfl import cli
from pa3dfl.deploy.status import seconds_left

Capture = pytest.CaptureFixture[str]


def ask(capsys: Capture) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["deploy", "status", "site", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_before_during_and_after_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """One node has gone; the others train three rounds and are tested after the second and the third."""
    monkeypatch.chdir(tmp_path)
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", per_round=3, timeout=0.5)
    seen: list[dict[str, Any]] = []

    with serving(machines) as state:
        idle = ask(capsys)
        assert (idle["state"], idle["rounds_done"], idle["seconds_left"]) == ("idle", 0, None)
        assert [n["state"] for n in idle["nodes"]] == ["registered"] * 3
        assert idle["missing"] == [n["name"] for n in idle["nodes"]] == ["node-0", "node-1", "node-2"]
        for node in machines.here:
            state.activate_node(node, 30.0)
        last = max(machines.here, key=lambda n: machines.here[n]["name"])

        def before(node: int, order: dict[str, Any]) -> None:
            if order["kind"] == "train" and order["round"] == 2 and last in machines.here:
                del machines.here[last]
                state.deactivate_node(last)
            if order["kind"] == "train" and order["round"] == 3:
                seen.append(ask(capsys))

        machines.before = before
        machines.train()
        done = ask(capsys)
        capsys.readouterr()
        assert cli.main(["deploy", "status", "site"]) == 0
        text = capsys.readouterr().out

        # A node with a new key has another number in Flower, and stays the client that it was.
        assert cli.main(["deploy", "rotate-key", "site", "node-1"]) == 0
        moved = [n for n in ask(capsys)["nodes"] if n["name"] == "node-1"]
        assert [(n["state"], n["client"], n["last_round"]) for n in moved] == [("registered", 1, 3)]

    made = records(machines.deployment.run)
    during = seen[0]
    assert (during["state"], during["rounds_done"], during["rounds"], during["line"]) == ("training", 2, 3, None)
    assert during["seconds_left"] >= 0
    assert during["missing"] == ["node-2"]
    assert [(n["name"], n["state"], n["client"], n["last_round"]) for n in during["nodes"]] == [
        ("node-0", "online", 0, 2), ("node-1", "online", 1, 2), ("node-2", "offline", 2, 1),
    ]  # fmt: skip
    assert during["bytes_down"] == sum(r["bytes_down"] for r in made[:2]) > 0
    assert during["accuracy"] == made[1]["test_accuracy"]
    assert (done["state"], done["rounds_done"], done["seconds_left"]) == ("finished", 3, None)
    assert done["bytes_up"] == sum(r["bytes_up"] for r in made)
    assert "3 of 3 done" in text
    assert "nodes: 2 of 3 connected\nmissing: node-2\nended: " in text


@pytest.mark.parametrize(
    ("site", "reason"),
    [("nowhere", "nowhere is not a deployment"), ("site", "does not answer"), (".", ". is not a deployment")],
)
def test_without_a_server_there_is_no_status(
    site: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["deploy", "init", "site", "--nodes", "1", "--port", "1"]) == 0
    capsys.readouterr()
    assert cli.main(["deploy", "status", site]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert reason in err


def test_time_left() -> None:
    """Rounds of 10 s and tested ones of 30 s, a test after every second round and the last."""
    made: list[dict[str, Any]] = [{"round": 1, "seconds": 10.0}]
    assert seconds_left(made, 5, 2, 0.0) == 40.0
    made += [{"round": 2, "seconds": 30.0, "test_accuracy": 0.5}, {"round": 3, "seconds": 10.0}]
    assert seconds_left(made, 5, 2, 0.0) == 60.0
    assert seconds_left(made, 5, 2, 45.0) == 15.0
    assert seconds_left(made, 5, 2, 100.0) == 0.0
    assert seconds_left(made, 3, 2, 0.0) == 0.0


def test_a_training_that_runs_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=1)
    codes: list[int] = []

    def before(node: int, order: dict[str, Any]) -> None:
        if order["kind"] == "train" and not codes:
            codes.append(cli.main(["deploy", "train", "site", "--overwrite"]))

    with serving(machines):
        machines.before = before
        machines.train()
    assert codes == [2]
    assert "another training is running in site: wait for it or stop it" in capsys.readouterr().err
    assert [r["round"] for r in records(machines.deployment.run)] == [1]
