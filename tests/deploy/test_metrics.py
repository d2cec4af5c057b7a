"""The endpoint for Prometheus, with a real SuperLink and the files of a real training."""

import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")
pytest.importorskip("prometheus_client", reason="pip install 'pa3dfl[metrics]'")

from compared import CAPACITIES, records
from machines import Machines
from prometheus_client.parser import text_string_to_metric_families
from serving import serving

from pa3dfl import cli
from pa3dfl.deploy.metrics import serve_metrics
from pa3dfl.deploy.node_launcher import free_port


def scrape(port: int) -> dict[str, float]:
    """All samples, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {" ".join((s.name, *s.labels.values())): s.value for family in families for s in family.samples}


def test_metrics_that_prometheus_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    machines, port = Machines(tmp_path, CAPACITIES, method="fedavg", per_round=3, rounds=2), free_port()
    during: list[dict[str, float]] = []
    serve_metrics(machines.deployment, port)
    assert scrape(port) == {"pa3dfl_up": 0}

    with serving(machines) as state:
        first = min(machines.here, key=lambda n: machines.here[n]["name"])
        state.activate_node(first, 30.0)
        before = scrape(port)

        def look(node: int, order: dict[str, Any]) -> None:
            if order["kind"] == "train" and order["round"] == 2 and not during:
                during.append(scrape(port))

        machines.before = look
        machines.train()
        after = scrape(port)

    made = records(machines.deployment.run)
    assert (before["pa3dfl_up"], before["pa3dfl_training"], before["pa3dfl_round"]) == (1, 0, 0)
    counts = {"registered": 3, "connected": 1, "missing": 2, "rejected": 0}
    assert all(before[f"pa3dfl_nodes {state}"] == count for state, count in counts.items())
    assert "pa3dfl_accuracy" not in before
    assert (during[0]["pa3dfl_training"], during[0]["pa3dfl_round"], during[0]["pa3dfl_rounds"]) == (1, 1, 2)
    assert during[0]["pa3dfl_tensor_bytes_total up"] == made[0]["bytes_up"]
    assert after["pa3dfl_accuracy"] == made[1]["test_accuracy"]
    assert after["pa3dfl_tensor_bytes_total down"] == sum(r["bytes_down"] for r in made)
    assert after["pa3dfl_round_seconds"] > 0
    assert after["pa3dfl_rejected_updates_total"] == 0


def test_metrics_are_served_to_this_machine_only(tmp_path: Path) -> None:
    machines, port = Machines(tmp_path, CAPACITIES), free_port()
    serve_metrics(machines.deployment, port)
    listening = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True).stdout
    assert f"127.0.0.1:{port}" in listening
    assert listening.count("\n") == 1


@pytest.mark.parametrize(
    ("port", "reason"),
    [("no", "metrics is 'no': expected a whole number"), ("0", "metrics is 0: expected at least 1"),
     ("70000", "metrics is 70000: expected at most 65535"),
     ("taken", "is in use: stop the program that listens there, or set another port in --metrics")],
)  # fmt: skip
def test_wrong_calls_are_refused(
    port: str, reason: str, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    machines = Machines(tmp_path, CAPACITIES)
    if port == "taken":
        port = str(free_port())
        serve_metrics(machines.deployment, int(port))
    capsys.readouterr()
    with monkeypatch.context() as never:
        never.setattr("os.execve", lambda *_: pytest.fail("the server was started"))
        assert cli.main(["deploy", "server", "site", "--metrics", port]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert reason in err
