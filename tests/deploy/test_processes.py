"""Real processes on one machine. Slow: `make test-deploy`."""

import json
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import survivors
from live import Live, finish
from machines import OPTIONS
from safetensors.torch import load_file

from pa3dfl.core.tree import Tree
from pa3dfl.deploy.certificates import write_certificates, write_node_key
from pa3dfl.experiments import api
from pa3dfl.experiments.export import export
from pa3dfl.federation.checkpoint import Checkpoints

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]
CAPACITIES = ["1", "1/4", "1/16"]
TIMEOUT = 120.0


def same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def saved(path: Path) -> Any:
    return Checkpoints(path / "checkpoints").load(torch.device("cpu"))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


def without_time(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in records(path)]


def alone(live: Live, out: str, **changes: Any) -> Path:
    said = OPTIONS | {"setting": f"list:{','.join(live.capacities)}", "engine": "sequential"} | changes
    api.run(**(said | {"data": str(live.folder / "all.npz"), "out": str(live.folder / out)}))
    return live.folder / out


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live(tmp_path_factory.mktemp("three"), CAPACITIES, **(OPTIONS | {"timeout": 600.0})) as live:
        live.server()
        for i in range(3):
            live.node(i)
        yield live


@pytest.mark.parametrize("method", ["ditto", "pa3dfl"])
def test_same_bits_as_on_one_machine(method: str, three: Live) -> None:
    three.configure(method=method)
    code, out = finish(three.train("--overwrite"))
    assert code == 0, out
    assert "3 nodes hold their model" in out
    one, run = alone(three, method, method=method), three.deployment.run
    assert without_time(one) == without_time(run)
    assert (one / "clients.csv").read_text() == (run / "clients.csv").read_text()
    a, b = saved(one), saved(run)
    assert same(a.server, b.server)
    token = json.loads(three.deployment.registrations.read_text())["token"]
    for i, receipt in b.private.items():
        folder = three.deployment.nodes / f"node-{i}" / "state" / token
        assert same(a.private[i], load_file(folder / f"private.{int(receipt['round'])}.safetensors"))


def test_a_server_that_dies_ten_times_loses_at_most_the_running_rounds(three: Live) -> None:
    """SuperLink and server app are killed at random times and restarted; nodes reconnect, and the bits are the same."""
    rounds, moments = 14, random.Random(1)
    three.configure(method="ditto", rounds=rounds)
    for death in range(10):
        training = three.train("--resume" if death else "--overwrite")
        three.wait_for("3 of 3 nodes are connected")
        time.sleep(moments.uniform(0, 12))
        kept = len(records(three.deployment.run)) if (three.deployment.run / "rounds.jsonl").exists() else 0
        assert kept < rounds, "it was done before it died ten times: ask for more rounds"
        three.kill("server")
        code, out = finish(training)
        assert code != 0, out
        assert "--resume" in out.splitlines()[-1]
        assert len(records(three.deployment.run)) - kept in (0, 1)
        three.server()
    code, out = finish(three.train("--resume"))
    assert code == 0, out
    one = alone(three, "resumed", method="ditto", rounds=rounds)
    assert without_time(one) == without_time(three.deployment.run)
    assert same(saved(one).server, saved(three.deployment.run).server)


def test_a_restarted_node_has_its_state(three: Live) -> None:
    """A node is killed after its first round and restarted: its state file is unchanged, and the next round uses it."""
    three.configure(method="ditto", rounds=4, per_round=3, timeout=40.0)
    training = three.train("--overwrite")
    three.wait_for("3 of 3 nodes are connected")
    while not (three.deployment.run / "rounds.jsonl").exists() or not records(three.deployment.run):
        time.sleep(0.2)
    three.kill("node-1")
    token = json.loads(three.deployment.registrations.read_text())["token"]
    folder = three.deployment.nodes / "node-1" / "state" / token
    before = {file.name: file.read_bytes() for file in folder.glob("private.*.safetensors")}
    assert before
    three.node(1)
    assert {file.name: file.read_bytes() for file in folder.glob("private.*.safetensors")} == before
    code, out = finish(training)
    assert code == 0, out
    seen = records(three.deployment.run)
    assert 1 not in seen[-1].get("missing", []), "it never took part again"
    server, private = survivors(three.folder, three.capacities, [r.get("missing", []) for r in seen])
    assert same(server, saved(three.deployment.run).server)
    receipt = saved(three.deployment.run).private[1]
    assert same(private[1], load_file(folder / f"private.{int(receipt['round'])}.safetensors"))


def test_an_unregistered_node_is_refused(three: Live) -> None:
    """Plaintext, another authority, an unregistered key: none of them becomes a node."""
    plain, forged, strange = (three.folder / name for name in ("plain", "forged", "strange"))
    for folder in (plain, forged, strange):
        shutil.copytree(three.deployment.nodes / "node-0", folder, ignore=shutil.ignore_patterns("state", "flower"))
    write_certificates(three.folder / "other", "127.0.0.1")
    shutil.copy(three.folder / "other" / "ca.crt", forged / "ca.crt")
    write_node_key(strange / "key")
    words = ("--data", "node-0.npz", "--capacity", "1")
    for folder, flags in ((plain, ("--insecure",)), (forged, ()), (strange, ())):
        three.start(folder.name, "deploy", "node", folder.name, *words, *flags)
    deadline = time.monotonic() + 180
    names = ("plain", "forged", "strange")
    while time.monotonic() < deadline and not all(tries(three.log(n)) > 2 for n in names):
        time.sleep(1)
    for name in names:
        assert tries(three.log(name)) > 2, three.log(name)
        assert "Receiving" not in three.log(name)
        three.kill(name)
    assert len(set(re.findall(r"Activated node_id=(\d+)", three.log("server")))) == 3


def tries(log: str) -> int:
    return log.count("retrying") + log.count("trying again")


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    options = OPTIONS | {"method": "ditto", "per_round": 8, "rounds": 2, "timeout": TIMEOUT}
    with Live(tmp_path_factory.mktemp("eight"), ["1/16"] * 8, **options) as live:
        live.server()
        for i in range(8):
            live.node(i)
        yield live


@pytest.mark.parametrize("k", [1, 4, 7, 8])
def test_a_server_killed_in_the_middle_of_a_round(k: int, eight: Live) -> None:
    """The round ends in time, the missing are named, and the result is that of the survivors."""
    for i in range(8):
        if f"node-{i}" not in eight.running:
            eight.node(i)
    training = eight.train("--overwrite")
    eight.wait_for("8 of 8 nodes are connected")
    time.sleep(1.5)
    dead = sorted(random.Random(k).sample(range(8), k))
    for i in dead:
        eight.kill(f"node-{i}", signal.SIGKILL)
    code, out = finish(training)
    if k == 8:
        assert code == 2, out
        assert out.splitlines()[-1] == "pa3dfl: round 1: none of 8 clients answered; 0 rounds are kept"
        return
    assert code == 0, out
    first, second = records(eight.deployment.run)
    assert first["missing"] == second["missing"] == dead
    assert first["seconds"] <= TIMEOUT + 5
    assert second["untested"] == dead
    assert same(survivors(eight.folder, eight.capacities, [dead, dead])[0], saved(eight.deployment.run).server)


def test_all_methods_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conftest import make_arrays
    from pa3dfl.methods import registry

    monkeypatch.chdir(tmp_path)
    arrays = make_arrays(240)
    np.savez("tiny.npz", x=arrays.x, y=arrays.y)
    said = OPTIONS | {"data": "tiny.npz", "clients": 6, "per_round": 3, "setting": "levels:1,1/16,1/256", "rounds": 4}
    for method in registry():
        for engine in ("sequential", "flower"):
            api.run(**said, method=method, engine=engine, out=f"{method}-{engine}")
        one, ray = Path(f"{method}-sequential"), Path(f"{method}-flower")
        assert without_time(one) == without_time(ray), method
        assert same(saved(one).server, saved(ray).server), method
        for i, receipt in saved(ray).private.items():
            file = ray / "nodes" / str(i) / f"private.{int(receipt['round'])}.safetensors"
            assert same(saved(one).private[i], load_file(file)), method
        for a, b in zip(export(one), export(ray), strict=True):
            assert Path(a["path"]).read_bytes() == Path(b["path"]).read_bytes(), method
