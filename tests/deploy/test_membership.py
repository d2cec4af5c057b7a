"""Keys that are replaced and revoked, with a real SuperLink that answers over TLS."""

import ssl
import stat
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import CAPACITIES
from cryptography.hazmat.primitives.asymmetric import ec
from fleet_requests import asked, private_key, signed
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from machines import Machines
from serving import serving

from pa3dfl import cli
from pa3dfl.deploy.folder import DeploymentFolder
from pa3dfl.deploy.superlink import FLEET

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def heartbeat(site: DeploymentFolder, key: ec.EllipticCurvePrivateKey, node: int) -> int:
    """The HTTP status of the answer to a node's message."""
    path = f"{FLEET}send-node-heartbeat"
    content = asked(path, node, public_key_to_bytes(key.public_key())).SerializeToString()
    with httpx.Client(verify=ssl.create_default_context(cafile=site.ca())) as client:
        return client.post(f"https://{site.address()}{path}", headers=signed(key), content=content).status_code


def ids(machines: Machines) -> dict[str, int]:
    return {node["name"]: i for i, node in machines.here.items()}


def test_a_revoked_node_is_refused_and_the_others_are_not(tmp_path: Path, capsys: Capture) -> None:
    machines = Machines(tmp_path, CAPACITIES)
    site = machines.deployment
    keys = [private_key(site.nodes / f"node-{i}" / "key") for i in range(3)]
    with serving(machines) as state:
        nodes = ids(machines)
        for name, key in zip(("node-0", "node-1"), keys, strict=False):
            state.activate_node(nodes[name], 30.0)
            assert heartbeat(site, key, nodes[name]) == 200
        capsys.readouterr()
        assert cli.main(["deploy", "revoke", "site", "node-1"]) == 0
        assert f"pa3dfl: node {nodes['node-1']} is unregistered" in capsys.readouterr().out
        assert heartbeat(site, keys[1], nodes["node-1"]) == 401
        assert heartbeat(site, keys[0], nodes["node-0"]) == 200
        assert cli.main(["deploy", "revoke", "site", "node-1"]) == 2
        assert "there is no key of 'node-1' in site/keys: its nodes are node-0, node-2" in capsys.readouterr().err
        assert cli.main(["deploy", "register", "site"]) == 0
        assert heartbeat(site, keys[1], nodes["node-1"]) == 401


def test_a_new_key_replaces_the_old_one(tmp_path: Path, capsys: Capture) -> None:
    machines = Machines(tmp_path, CAPACITIES)
    site, file = machines.deployment, machines.deployment.nodes / "node-2" / "key"
    old = private_key(file)
    with serving(machines) as state:
        nodes = ids(machines)
        state.activate_node(nodes["node-2"], 30.0)
        assert cli.main(["deploy", "rotate-key", "site", "node-2"]) == 0
        assert "the new private key of node-2 is site/nodes/node-2/key: move it" in capsys.readouterr().out
        new = private_key(file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert heartbeat(site, old, nodes["node-2"]) == 401
        node = state.get_node_id_by_public_key(public_key_to_bytes(new.public_key()))
        assert node not in nodes.values()
        state.activate_node(node, 30.0)
        assert heartbeat(site, new, node) == 200


@pytest.mark.parametrize("command", ["revoke", "rotate-key"])
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nowhere", "node-0"), "nowhere is not a deployment"),
        (("site", "node-9"), "there is no key of 'node-9' in site/keys: its nodes are node-0, node-1"),
        (("site", "../server"), "there is no key of '../server' in site/keys"),
        (("open", "node-0"), "open was made with --insecure: its nodes have no keys"),
        (("site",), "the following arguments are required: NODE"),
    ],
)
def test_wrong_calls_are_refused(command: str, words: tuple[str, ...], reason: str, capsys: Capture) -> None:
    assert cli.main(["deploy", "init", "site", "--nodes", "2"]) == 0
    assert cli.main(["deploy", "init", "open", "--nodes", "2", "--insecure"]) == 0
    capsys.readouterr()
    assert cli.main(["deploy", command, *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert reason in err


def test_without_a_server_the_change_takes_effect_when_it_starts(capsys: Capture) -> None:
    assert cli.main(["deploy", "init", "site", "--nodes", "2", "--port", "1"]) == 0
    before = Path("site/keys/node-1.pub").read_bytes()
    assert cli.main(["deploy", "revoke", "site", "node-0"]) == 0
    assert cli.main(["deploy", "rotate-key", "site", "node-1"]) == 0
    assert (
        capsys.readouterr().out.count("pa3dfl: the server is not running: the change takes effect when it starts") == 2
    )
    assert [p.name for p in Path("site/keys").iterdir()] == ["node-1.pub"]
    assert Path("site/keys/node-1.pub").read_bytes() != before
