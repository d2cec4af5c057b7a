"""A deployment with its real processes, looked after while it trains. Slow: `make test-deploy`."""

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")
pytest.importorskip("prometheus_client", reason="pip install 'pa3dfl[metrics]'")

from compared import CAPACITIES, records, same, saved
from live import ENVIRONMENT, Live, pa3dfl
from machines import OPTIONS
from test_metrics import scrape

from pa3dfl.deploy.folder import DeploymentFolder
from pa3dfl.deploy.node_launcher import free_port
from pa3dfl.experiments import api

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1200)]


def call(live: Live, *words: str) -> str:
    done = subprocess.run(pa3dfl("deploy", *words), cwd=live.folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status(live: Live) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(live, "status", "site", "--json"))
    return found


def until_round(live: Live, training: subprocess.Popen[str], rnd: int) -> None:
    file = live.deployment.run / "rounds.jsonl"
    while not file.exists() or len(records(live.deployment.run)) < rnd:
        assert training.poll() is None, training.communicate()
        time.sleep(0.2)


def finish(training: subprocess.Popen[str]) -> str:
    out, err = training.communicate(timeout=900)
    assert training.returncode == 0, out + err
    return out


def test_watched_a_node_revoked_and_a_key_replaced_while_it_trains(tmp_path: Path) -> None:
    port = free_port()
    options = OPTIONS | {"method": "ditto", "per_round": 3, "rounds": 8, "eval_every": 8, "timeout": 60.0}
    with Live(tmp_path, CAPACITIES, **options) as live:
        live.start("server", "deploy", "server", "site", "--metrics", str(port))
        for i in range(3):
            live.node(i)
        training = live.train()
        until_round(live, training, 1)
        during = status(live)
        assert (during["state"], during["missing"]) == ("training", [])
        assert [(n["name"], n["state"], n["client"]) for n in during["nodes"]] == [
            ("node-0", "online", 0), ("node-1", "online", 1), ("node-2", "online", 2),
        ]  # fmt: skip
        seen = scrape(port)
        assert (seen["pa3dfl_training"], seen["pa3dfl_rounds"], seen["pa3dfl_nodes connected"]) == (1, 8, 3)

        assert "is unregistered" in call(live, "revoke", "site", "node-2")
        at = len(records(live.deployment.run))
        assert "node-1 is registered" in call(live, "rotate-key", "site", "node-1")
        live.kill("node-1")
        live.node(1)
        finish(training)
        made = records(live.deployment.run)
        assert [r["round"] for r in made] == list(range(1, 9))
        assert all(2 not in r["participants"] for r in made[at + 1 :])
        live.configure(rounds=10)
        finish(live.train("--resume", "--wait-for", "2"))
        made = records(live.deployment.run)
        assert made[-1]["participants"] == [0, 1], "the node with the new key is not client 1"
        log = live.log("node-2")
        assert log.count("retrying") + log.count("trying again") > 0
        after = status(live)
        assert (after["state"], after["rounds_done"]) == ("finished", 10)
        assert [(n["name"], n["state"], n["last_round"]) for n in after["nodes"]] == [
            ("node-0", "online", 10), ("node-1", "online", 10),
        ]  # fmt: skip


def test_backed_up_while_it_trains_and_restored_elsewhere(tmp_path: Path) -> None:
    """The server's folder is lost; the nodes continue with the restored server, and the bits are the same."""
    options = OPTIONS | {"method": "ditto", "rounds": 6}
    with Live(tmp_path, CAPACITIES, **options) as live:
        live.server()
        for i in range(3):
            live.node(i)
        training = live.train()
        until_round(live, training, 3)
        call(live, "backup", "site", "site.tar")
        live.kill("server")
        training.communicate(timeout=120)
        for entry in live.deployment.path.iterdir():
            if entry.name != "nodes":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        call(live, "restore", "site.tar", "elsewhere")
        live.start("server", "deploy", "server", "elsewhere")
        out = call(live, "train", "elsewhere", "--resume")
        assert "3 nodes hold their model" in out
        said = options | {"setting": f"list:{','.join(CAPACITIES)}", "data": str(tmp_path / "all.npz")}
        api.run(**said, engine="sequential", out=str(tmp_path / "one"))
        there = DeploymentFolder(tmp_path / "elsewhere").run
        assert records(tmp_path / "one") == records(there)
        assert same(saved(tmp_path / "one").server, saved(there).server)
