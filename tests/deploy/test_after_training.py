"""Nodes that come after the last round: `pa3dfl deploy train --join`."""

import csv
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import SMALL
from live import Live, pa3dfl
from machines import OPTIONS, Machines

from pa3dfl.cli import main
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.data import split_one

CAPACITIES = ["1", "1/4", "1/16", "1/4"]


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(folder: Path, method: str, late: int = 1, **options: object) -> Machines:
    """The last nodes are absent while the others train."""
    machines = Machines(folder, CAPACITIES, method=method, newcomer_rounds=2, **SMALL.get(method, {}) | options)
    away = {100 + i: machines.here.pop(100 + i) for i in range(4 - late, 4)}
    machines.train(wait_for=4 - late)
    machines.here |= away
    machines.orders.clear()
    return machines


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def rounds_of(machines: Machines) -> dict[int, int]:
    """For each newcomer, the largest number of rounds after which it was tested."""
    with (machines.deployment.run / "newcomers.csv").open() as f:
        return {int(row["client"]): int(row["k"]) for row in csv.DictReader(f)}


@pytest.mark.parametrize(
    ("method", "room"),
    [(m, False) for m in ("pa3dfl", "pfedhn", "tailorfl", "flanc", "ditto", "fedavg")]
    + [("pa3dfl", True), ("tailorfl", True)],
)
def test_a_node_that_comes_after_the_last_round_gets_a_model(method: str, room: bool, tmp_path: Path) -> None:
    """Its client number may be free from the start or new; the other nodes get no orders."""
    machines = trained(tmp_path, method, **({"clients": 5} if room else {}))
    run, nodes = machines.deployment.run, machines.deployment.nodes
    kept = ["rounds.jsonl", "summary.json", *(f"checkpoints/{p.name}" for p in (run / "checkpoints").glob("*"))]
    before = {name: (run / name).read_bytes() for name in kept if (run / name).is_file()}
    homes = [files(nodes / f"node-{i}") for i in range(3)]
    (run / "report.html").unlink()
    machines.train(join=True)
    assert rounds_of(machines) == {3: 2}
    assert (run / "report.html").exists()
    card = json.loads((nodes / "node-3/model.json").read_text())
    assert card["client"] == 3
    assert card["round"] == json.loads((run / "summary.json").read_text())["rounds"] + 2
    assert (nodes / "node-3" / card["file"]).is_file()
    assert before == {name: (run / name).read_bytes() for name in before}
    assert homes == [files(nodes / f"node-{i}") for i in range(3)]
    assert {(node, order["kind"]) for node, order in machines.orders if node != 103} <= {
        (100 + i, "who") for i in range(3)
    }
    with (run / "clients.csv").open() as f:
        rows = {row["client"]: row["newcomer"] for row in csv.DictReader(f)}
    assert rows == {"0": "0", "1": "0", "2": "0", "3": "1"}


def test_nodes_join_one_after_another_and_training_ignores_them(tmp_path: Path) -> None:
    machines = trained(tmp_path, "pa3dfl", late=2)
    last = machines.here.pop(103)
    machines.train(join=True)
    with pytest.raises(UserError, match="0 of 1 new node came within 0 s"):
        machines.train(join=True)
    first = (machines.deployment.run / "newcomers.csv").read_text()
    machines.here[103] = last
    machines.orders.clear()
    machines.train(join=True)
    assert rounds_of(machines) == {2: 2, 3: 2}
    assert set(first.splitlines()) < set((machines.deployment.run / "newcomers.csv").read_text().splitlines())
    assert {node for node, order in machines.orders if order["kind"] != "who"} == {103}
    machines.orders.clear()
    machines.configure(rounds=4)
    machines.train(resume=True, wait_for=2)
    assert {node for node, order in machines.orders if order["kind"] == "train"} <= {100, 101}


def test_an_interrupted_joining_continues(tmp_path: Path) -> None:
    machines = trained(tmp_path, "ditto")
    trainings = 0

    def before(node: int, order: dict[str, object]) -> None:
        nonlocal trainings
        trainings += order["kind"] == "train"
        if trainings == 2:
            raise KeyboardInterrupt

    machines.before = before
    page = machines.deployment.run / "report.html"
    page.unlink()
    with pytest.raises(Interrupted):
        machines.train(join=True)
    assert rounds_of(machines) == {3: 1}
    assert page.exists()
    page.unlink()
    machines.before = lambda node, order: None
    machines.orders.clear()
    machines.train(join=True)
    assert page.exists()
    assert rounds_of(machines) == {3: 2}
    assert [order["kind"] for node, order in machines.orders if node == 103 and order["kind"] == "train"] == ["train"]


@pytest.mark.deploy
@pytest.mark.timeout(900)
def test_with_real_processes(tmp_path: Path) -> None:
    """Two nodes train; a third one, registered but switched off until then, joins, and predicts with its model."""
    options = OPTIONS | {"method": "pa3dfl", "rounds": 2, "newcomer_rounds": 2, "timeout": 300.0} | SMALL["pa3dfl"]
    with Live(tmp_path, CAPACITIES[:3], **options) as live:
        live.server()
        live.node(0)
        live.node(1)
        code, said = finish(live.train("--wait-for", "2"))
        assert code == 0, said
        homes = [files(live.deployment.nodes / f"node-{i}") for i in range(2)]
        server = files(live.deployment.run / "checkpoints")
        live.node(2)
        code, said = finish(live.train("--join"))
        assert code == 0, said
        assert "node-2 came later and is client 2" in said
        assert "newcomers: round 2/2" in said
        assert "1 joined" in said
        assert "1 node holds its model" in said
        assert homes == [files(live.deployment.nodes / f"node-{i}") for i in range(2)]
        assert server.items() <= files(live.deployment.run / "checkpoints").items()
        assert all(live.running[f"node-{i}"].poll() is None for i in range(3))
    words = pa3dfl("predict", str(live.deployment.nodes / "node-2"), "node-2.npz", "--json")
    told = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    card = json.loads((live.deployment.nodes / "node-2/model.json").read_text())
    y = np.load(tmp_path / "node-2.npz")["y"]
    rows = split_one(2, np.arange(len(y)), 0).test
    assert (np.array(json.loads(told)["labels"])[rows] == y[rows]).mean() == card["test_accuracy"]
    assert (card["client"], card["round"], card["r"]) == (2, 4, "1/16")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out + err


def test_joining_is_refused_without_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machines = trained(tmp_path, "fedavg")
    machines.here[103]["capacity"] = "1/256"
    with pytest.raises(UserError, match="0 of 1 new node came"):
        machines.train(join=True)
    assert "affords less than the width" in machines.deployment.log.read_text()
    machines.configure(rounds=9)
    with pytest.raises(UserError, match="0 of 1 new node came"):
        machines.train(join=True)
    for words, reason in (
        (["--join", "--resume"], "choose one of --resume, --overwrite and --join"),
        (["--join"], "there is no finished run"),
    ):
        (machines.deployment.run / "summary.json").unlink(missing_ok=True)
        assert main(["deploy", "train", "site", *words]) != 0
        assert reason in capsys.readouterr().err
    machines.configure(newcomers="10%")
    assert main(["deploy", "train", "site"]) != 0
    assert "nodes that come later join with `pa3dfl deploy train --join`" in capsys.readouterr().err
