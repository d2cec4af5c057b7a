"""A deployed server attacked from another machine (a network namespace), and nodes whose server was taken over."""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fleet_requests import UNKNOWN, private_key, routes
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.superlink.main import create_app
from live import ENVIRONMENT, Live, beside
from machines import OPTIONS
from other_machine import OtherMachine, machine_for_module
from rogue import alive, ask, bundle, flwr, resident_megabytes, taken_over, write

from pa3dfl.deploy.app import BUNDLE
from pa3dfl.deploy.certificates import write_certificates, write_node_key
from pa3dfl.deploy.control_client import ControlClient
from pa3dfl.deploy.folder import program
from pa3dfl.deploy.supervisor import supervised
from pa3dfl.engines.flower.engine import content, record

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1200)]
FUZZED = 12_000
other_machine = machine_for_module(OtherMachine)


@pytest.fixture(scope="module")
def live(other_machine: OtherMachine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    options = OPTIONS | {"method": "ditto", "rounds": 1, "eval_every": 1, "timeout": 120.0}
    with beside(other_machine, tmp_path_factory.mktemp("access"), ["1", "1/4"], **options) as live:
        write_certificates(live.folder / "other", other_machine.here)
        deadline = time.monotonic() + 120
        while len(set(re.findall(r"Activated node_id=(\d+)", live.log("server")))) < 2:
            assert time.monotonic() < deadline, live.log("server")
            time.sleep(0.3)
        yield live


def wait_for(live: Live, name: str, said: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while said not in live.log(name):
        assert time.monotonic() < deadline, f"{name} never said {said!r}:\n{live.log(name)[-3000:]}"
        time.sleep(0.3)


def numbers(live: Live) -> list[int]:
    """Flower's numbers of the nodes, in the order of their names."""
    found, _ = ControlClient(live.deployment).nodes()
    spki = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    keys = [private_key(live.deployment.nodes / f"node-{i}" / "key").public_key().public_bytes(*spki) for i in range(2)]
    return [found[key] for key in keys]


def train(live: Live) -> str:
    done = live.train("--overwrite")
    out, err = done.communicate(timeout=600)
    assert done.returncode == 0, out + err
    return out


def outside_caller(live: Live, other_machine: OtherMachine, **plan: Any) -> Counter[str]:
    file = live.folder / "plan.json"
    plan |= {
        "address": f"{other_machine.here}:{live.port}",
        "ca": str(live.deployment.ca()),
        "token": live.deployment.token.read_text(),
    }
    plan |= {"other_ca": str(live.folder / "other" / "ca.crt"), "key": str(live.deployment.nodes / "node-1" / "key")}
    file.write_text(json.dumps(plan))
    script = Path(__file__).with_name("outside_caller.py")
    done = other_machine.run(sys.executable, str(script), str(file), folder=live.folder)
    assert done.returncode == 0, done.stderr
    return Counter(json.loads(done.stdout.splitlines()[-1]))


def test_nodes_train_on_both_machines(live: Live) -> None:
    assert "2 nodes hold their model" in train(live)


def test_no_request_from_outside_succeeds(live: Live, other_machine: OtherMachine) -> None:
    """Every path with no key, a wrong key, another node's key and the token; over TLS, another authority, plaintext."""
    every = [*routes(create_app()), *(("POST", p) for p in UNKNOWN)]
    came = outside_caller(live, other_machine, what="try_all", routes=every, victim=numbers(live)[0])
    assert came.total() == 12 * len(every)
    for line, times in came.items():
        transport, _, _, status = line.split(" | ")
        expected = ("401", "403") if transport == "tls" else ("no connection",)
        assert status in expected, f"{line}: {times}"
    assert sum(n for line, n in came.items() if line.endswith("| 401")) == 4 * 12
    assert alive(live, "server")


def test_flower_s_own_command_line(live: Live, other_machine: OtherMachine, tmp_path: Path) -> None:
    """From another machine no command works, even with the token; on this machine commands need the token."""
    app, address = write(tmp_path / "app", tmp_path / "marker"), f"{other_machine.here}:{live.port}"
    write_node_key(tmp_path / "mine")
    (tmp_path / "mine.pub").write_bytes(write_node_key(tmp_path / "mine"))
    token = live.deployment.token.read_text()
    commands = (("list", "site"), ("supernode", "list", "site"), ("supernode", "register", "mine.pub", "site"),
                ("run", str(app), "site"))  # fmt: skip
    for name, held in (("none", None), ("wrong", "f" * 64), ("held", token)):
        env = flwr(tmp_path / name, live, address, held)
        for words in commands:
            done = other_machine.run(program("flwr"), *words, folder=tmp_path, **env)
            assert done.returncode != 0, (name, words, done.stdout)
    for name, code in (("none", 1), ("wrong", 1), ("held", 0)):
        env = ENVIRONMENT | flwr(tmp_path / name, live, address)
        words = [program("flwr"), "list", "site"]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        assert (done.returncode == 0) == (code == 0), (name, done.stdout, done.stderr)


def test_a_foreign_app_with_the_token_is_refused(live: Live, other_machine: OtherMachine, tmp_path: Path) -> None:
    """Flower accepts the run, pa3dfl's executor on the server refuses it, and the next training works as before."""
    app, marker = write(tmp_path / "app", tmp_path / "marker"), tmp_path / "marker"
    env = ENVIRONMENT | flwr(
        tmp_path / "home", live, f"{other_machine.here}:{live.port}", live.deployment.token.read_text()
    )
    words = [program("flwr"), "run", str(app), "site", "--format", "json"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    run = int(json.loads(done.stdout[done.stdout.index("{") :])["run-id"])
    wait_for(live, "server", "a task of another app was refused")
    assert ControlClient(live.deployment).status(run) == "finished:failed"
    assert "2 nodes hold their model" in train(live)
    assert not list(tmp_path.glob("marker*")), marker


def test_fuzzed_requests_change_nothing(live: Live, other_machine: OtherMachine) -> None:
    """No crash and no growth of memory; half of the requests have no key, half have a registered node's key."""
    fleet = [path for method, path in routes(create_app()) if path.startswith("/v1/fleet/")]
    plan = {"what": "fuzz", "fleet": fleet, "own": numbers(live)[1]}
    pid = live.running["server"].pid
    outside_caller(live, other_machine, **plan, seed=1, count=2000)
    before = resident_megabytes(pid)
    came = outside_caller(live, other_machine, **plan, seed=2, count=FUZZED)
    after = resident_megabytes(pid)
    print(dict(came), f"{before:.0f} MB before, {after:.0f} MB after")
    assert came["no key | 401"] == FUZZED // 2
    assert sum(n for line, n in came.items() if line.startswith("key |")) == FUZZED // 2
    assert all(line.rsplit(" ", 1)[1].isdigit() for line in came), came
    assert after < 1.05 * before
    assert alive(live, "server")
    assert "2 nodes hold their model" in train(live)


def test_a_server_that_was_taken_over_runs_nothing_on_a_node(live: Live, tmp_path: Path) -> None:
    """The attacker has the server's certificates, and sends the nodes a foreign app and foreign orders."""
    marker = tmp_path / "marker"
    theirs = bundle(write(tmp_path / "app", marker))
    nodes = numbers(live)
    live.kill("server")
    (live.folder / "spy.py").write_text(f"from pathlib import Path\nPath({str(marker)!r}).write_text('was here')\n")
    with taken_over(live) as server:
        grid = server.run(theirs)
        hello = RecordDict({"x": ConfigRecord({"a": 1})})
        replies = ask(grid, [Message(hello, n, kind) for n in nodes for kind in ("query", "train")], 120)
        assert [r.error.code for r in replies] == [ErrorCode.INVALID_FAB] * 4
        for i in range(2):
            wait_for(live, f"node-{i}", "a task of another app was refused")
        # The same app under the hash of ours: the node turns away, and comes back.
        grid = server.run(BUNDLE, swap=theirs)
        grid.push_messages([Message(hello, nodes[0], "query")])
        wait_for(live, "node-0", "FAB hash mismatch")
        tries = live.log("node-0").count("SuperNode ID")
        deadline = time.monotonic() + 120
        while live.log("node-0").count("SuperNode ID") == tries:
            assert time.monotonic() < deadline, live.log("node-0")
            time.sleep(0.5)
        # Orders that no server of ours gives.
        grid = server.run(BUNDLE, swap=BUNDLE)
        config = {"method": "ditto", "data": "all.npz", "model": "cnn-fashion"}
        orders = [
            {"kind": "who", "config": config | {"model": "spy:Path"}},
            {"kind": "who", "config": config | {"method": "spy:Path"}},
            {"kind": "train", "client": 0, "round": "../../../../../../marker", "receipt": None, "config": config},
            {"kind": "test", "client": 0, "round": 1, "receipt": "../../x", "config": config},
            {"kind": "nothing"},
            {},
        ]
        replies = ask(grid, [Message(record(o, b"\x00" * 9), nodes[0], "query") for o in orders], 120)
        assert len(replies) == len(orders), live.log("node-0")
        said = " ".join(str(r.error.reason if r.has_error() else content(r)[0].get("error")) for r in replies)
        assert "is code that this node does not allow" in said
        assert "round is '../../" in said
        [reply] = ask(grid, [Message(record({"kind": "who", "config": config}, b""), nodes[0], "query")])
        assert content(reply)[0]["name"] == "node-0", "our own app is still answered"
    assert not list(tmp_path.glob("marker*"))
    live.server()
    assert "2 nodes hold their model" in train(live)


def test_flower_s_own_executor_would_have_run_it(live: Live, tmp_path: Path) -> None:
    """A check of the tests above: on a node started by Flower itself, the same app from the same server does run."""
    theirs = bundle(write(tmp_path / "app", tmp_path / "marker"))
    nodes = numbers(live)
    live.kill("node-0")
    live.kill("server")
    folder = live.deployment.nodes / "node-0"
    words = [program("flower-supernode"), "--superlink", f"127.0.0.1:{live.port}", "--host", "127.0.0.1"]
    words += ["--port", str(live.port + 1), "--root-certificates", str(folder / "ca.crt")]
    words += ["--auth-supernode-private-key", str(folder / "key"), "--node-config", "name=1"]
    with taken_over(live) as server:
        # Kept, because the number of the node that was here is free only after a minute.
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        live.execute("naive", supervised(words), FLWR_HOME=str(tmp_path / "home"), PATH=path)
        wait_for(live, "naive", "SuperNode ID", 240)
        grid = server.run(theirs)
        assert ask(grid, [Message(RecordDict({"x": ConfigRecord({"a": 1})}), nodes[0], "query")], 120)
    assert [p.name for p in tmp_path.glob("marker*")] == ["marker.client"]
