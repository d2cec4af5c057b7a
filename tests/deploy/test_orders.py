"""What a node does with orders that no server of ours gives: an error in the reply, and nothing else."""

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from flwr.app import Message
from machines import OPTIONS, Machines

from pa3dfl.core.logging import show_messages
from pa3dfl.deploy import app
from pa3dfl.deploy.node import on_message, say
from pa3dfl.deploy.task_runner import refusal
from pa3dfl.engines.flower.engine import content, record

SPY = "from pathlib import Path\nPath('was-here').write_text('x')\n\ndef make(width):\n    return None\n"


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "spy", raising=False)
    (tmp_path / "spy.py").write_text(SPY)
    return Machines(tmp_path, ["1"])


def told(machines: Machines, order: dict[str, Any], **node: Any) -> dict[str, Any]:
    machines.push_messages([message := Message(record(order, b""), 100, "query")])
    context: Any = SimpleNamespace(node_config=machines.node(0, "20MB", **node))
    return content(on_message(message, context))[0]


@pytest.mark.parametrize("field", ["model", "method"])
def test_code_runs_only_if_node_yaml_lists_it(field: str, machines: Machines) -> None:
    order = {"kind": "who", "config": OPTIONS | {"method": "fedavg", field: "spy:make"}}
    for code in ("", "other:make", "spy:makes", "spy"):
        error = told(machines, order, code=code)["error"]
        assert error == f"{field} 'spy:make' is code that this node does not allow: add it to `code` in node.yaml"
    assert not Path("was-here").exists()
    with contextlib.suppress(Exception):  # it makes nothing of use
        told(machines, order, code="other:make,spy:make")
    assert Path("was-here").exists(), "the test would not have seen it"


@pytest.mark.parametrize(
    "wrong",
    [{"round": "../../../out"}, {"round": None}, {"round": 1.5}, {"round": True}, {"receipt": "../x"}, {"client": "0"}],
)
def test_values_that_become_file_names_must_be_numbers(wrong: dict[str, Any], machines: Machines) -> None:
    before = sorted(Path().rglob("*"))
    order = {"kind": "train", "client": 0, "round": 1, "receipt": None, "config": OPTIONS, "run": "abc"}
    [name] = wrong
    assert told(machines, order | wrong)["error"].startswith(f"{name} is ")
    assert sorted(Path().rglob("*")) == before


def test_texts_from_the_server_are_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_messages()
    say("rejected: \x1b[2J\nroot logged in")
    assert capsys.readouterr().err == "pa3dfl: rejected: [2J root logged in\n"


def test_other_apps_and_other_types_of_task_are_refused() -> None:
    ours: Any = SimpleNamespace(type="flwr-clientapp", fab_hash=app.HASH)
    assert refusal(ours, "flwr-clientapp") is None  # type: ignore[arg-type]
    for kind, hashed in (("flwr-agentapp", app.HASH), ("flwr-clientapp", "0" * 64), ("flwr-clientapp", "")):
        other: Any = SimpleNamespace(type=kind, fab_hash=hashed)
        assert "was refused" in str(refusal(other, "flwr-clientapp"))  # type: ignore[arg-type]


def test_flower_accepts_our_app() -> None:
    from flwr.common.config import flatten_dict, get_fab_config

    config = get_fab_config(app.BUNDLE)
    assert flatten_dict(config["tool"]["flwr"]["app"]["config"]) == app.DEFAULTS
    assert app._bundle() == app.BUNDLE
