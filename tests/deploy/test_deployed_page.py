"""The page of a deployment: a node that came late, one that went, and one whose update was refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")
pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")

from compared import CAPACITIES, SMALL, records
from machines import Machines

from browser import chromium, opened
from pa3dfl.deploy.node import RealNode
from pa3dfl.deploy.registration import registration_of
from pa3dfl.engines.flower.messages import Refused
from pa3dfl.runs import page

NAME = "<script>alert('late')</script>"
REFUSED = "claims 32 training rows, declared 9"
SHOWN = "n => Object.fromEntries(Object.entries(pa3dfl.source(n)).map(([k, v]) => [k, Array.from(v)]))"


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Node 2 joins in round 1, node 1 sends false numbers in round 2, node 0 leaves in round 3."""
    monkeypatch.chdir(tmp_path)
    options = SMALL["pa3dfl"] | {"method": "pa3dfl", "per_round": 3, "rounds": 4, "timeout": 1.0}
    machines = Machines(tmp_path, CAPACITIES, **options)
    late, honest = machines.here.pop(102), RealNode.present

    def before(node: int, order: dict[str, Any]) -> None:
        machines.here[102] = late
        if (order["kind"], order.get("round")) == ("train", 3):
            machines.here.pop(100, None)

    def lie(node: RealNode) -> dict[str, Any]:
        [*_, (_, order)] = machines.orders or [(0, {})]
        training = (order.get("kind"), order.get("round")) == ("train", 2)
        return {"sizes": [9, 4, 4], "capacity": "1"} if training and node.node["name"] == "node-1" else honest(node)

    late["name"] = NAME
    machines.before = before
    monkeypatch.setattr(RealNode, "present", lie)
    machines.train(wait_for=2)
    return machines


def test_the_server_writes_the_page(deployed: Machines, request: pytest.FixtureRequest) -> None:
    run = deployed.deployment.run
    made = records(run)
    assert [r["participants"] for r in made] == [[0, 1], [0, 2], [1, 2], [1, 2]]
    assert made[1]["rejected"] == [{"client": 1, "reason": REFUSED}]
    assert [r["missing"] for r in made][:3] == [[], [], [0]]
    assert (run / page.NAME).stat().st_size < 2e6
    if chromium() is None:
        pytest.skip("no Chromium here: pages are not tested in a browser")
    with opened(request.getfixturevalue("browser"), run / page.NAME) as tab:
        assert "Not finished" not in tab.locator("header").inner_text()
        # Node 0 was away when the best round was tested: it stands at its last value.
        clients = tab.evaluate(SHOWN, "clients")
        assert clients["id"] == [0, 1, 2]
        assert [c == "#00000000" for c in clients["fill"]] == [True, False, False]
        assert tab.locator("#clients tr[data-id='0'] td.since").inner_text() == "2"
        assert sorted(tab.locator("#clients td.name").all_inner_texts()) == sorted(["node-0", "node-1", NAME])
        events = tab.evaluate(SHOWN, "events")
        found = list(zip(events["x"], events["y"], events["kind"], events["reason"], strict=True))
        assert found[0] == (2, 1, "update refused", REFUSED)
        assert (3, 0, "no answer", "") in found
        tab.locator("#filter").select_option("events")
        assert tab.evaluate(SHOWN, "clients")["id"] == [0, 1]
        assert not tab.locator("#s-labels").is_visible()  # labels stay with the nodes


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("x" * 10_000, "a node without a name of 1 to 100 printable characters"),
        ("two\nlines", "a node without a name of 1 to 100 printable characters"),
        ("=SUM(A1)", "the name '=SUM(A1)' begins with =: begin with another character"),
    ],
)
def test_names_that_fit_no_table_are_refused(name: str, reason: str) -> None:
    with pytest.raises(Refused, match=re.escape(reason)):
        registration_of(1, {"name": name, "r": "1", "shape": [1, 8, 8]})


def test_a_page_that_cannot_be_written_stops_no_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "rendered", lambda *_: 1 / 0)
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=2)
    machines.train()
    assert json.loads(machines.deployment.outcome.read_text())["ok"]
    assert "no page is written, the run goes on: division by zero" in machines.deployment.log.read_text()
