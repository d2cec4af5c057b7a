"""The commands of a deployment: what init writes, and one line with exit code 2 for whatever cannot be."""

import socket
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from pa3dfl import cli

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(*words: str) -> Path:
    assert cli.main(["deploy", "init", "site", *words]) == 0
    return Path("site")


def test_files_that_init_writes(capsys: Capture) -> None:
    site = init("--nodes", "2", "--host", "fl.example.org", "--method", "ditto", "--mu", "0.5", "--rounds", "7")
    assert yaml.safe_load((site / "config.yaml").read_text()) == {
        "method": "ditto", "rounds": 7, "mu": 0.5, "data": "nodes", "clients": 2,
    }  # fmt: skip
    assert yaml.safe_load((site / "server.yaml").read_text()) == {
        "host": "fl.example.org", "port": 9093, "insecure": False,
    }  # fmt: skip
    node = site / "nodes" / "node-1"
    assert yaml.safe_load((node / "node.yaml").read_text())["superlink"] == "fl.example.org:9093"
    private = load_ssh_private_key((node / "key").read_bytes(), None)
    public = load_ssh_public_key((site / "keys" / "node-1.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
    secrets = [site / "token", *(site / "certificates" / name for name in ("server.key", "ca.key"))]
    for secret in (node / "key", *secrets):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    ca, server = (
        x509.load_pem_x509_certificate((site / "certificates" / f"{n}.crt").read_bytes()) for n in ("ca", "server")
    )
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", "fl.example.org"}
    assert "next: pa3dfl deploy server site" in capsys.readouterr().out


def test_init_again_adds_nodes_and_keeps_keys() -> None:
    """It also adds a token, if the site was made before there were tokens."""
    site = init("--nodes", "1")
    key, token = (site / "nodes" / "node-0" / "key").read_bytes(), (site / "token").read_bytes()
    init("--nodes", "3")
    assert (site / "nodes" / "node-0" / "key").read_bytes() == key
    assert (site / "token").read_bytes() == token
    (site / "token").unlink()
    init("--nodes", "3")
    assert len((site / "token").read_bytes()) == 64
    assert sorted(p.stem for p in (site / "keys").iterdir()) == ["node-0", "node-1", "node-2"]


def test_init_again_spares_nodes_whose_folder_was_moved_away(tmp_path: Path) -> None:
    site = init("--nodes", "2")
    public = (site / "keys" / "node-1.pub").read_bytes()
    (site / "nodes" / "node-1").rename(tmp_path / "away")
    init("--nodes", "3")
    assert (site / "keys" / "node-1.pub").read_bytes() == public
    assert sorted(p.name for p in (site / "nodes").iterdir()) == ["node-0", "node-2"]


def test_insecure_has_neither_keys_nor_certificates() -> None:
    site = init("--insecure", "--nodes", "1")
    assert not (site / "certificates").exists()
    assert list((site / "keys").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "the following arguments are required: what"),
        (("start",), "invalid choice: 'start'"),
        (("init", "mine"), "mine is not empty and not a deployment"),
        (("init", "new", "--nodes", "0"), "nodes is 0: expected at least 1"),
        (("init", "new", "--port", "many"), "port is 'many': expected a whole number"),
        (("init", "new", "--method", "nothing"), "unknown method 'nothing'"),
        (("init", "new", "--engine", "flower"), "unknown argument '--engine'"),
        (("server", "nowhere"), "nowhere is not a deployment: make one with `pa3dfl deploy init nowhere`"),
        (("train", "nowhere"), "config nowhere/config.yaml cannot be read"),
        (("train", "site", "--resume"), "there is no run in site to resume: omit --resume"),
        (("train", "done"), "done/run holds a run: use --resume or --overwrite"),
        (("node", "mine", "--data", "rows.npz"), "mine is not a node's folder: it has no node.yaml"),
        (("node", "site/nodes/node-0"), "a node needs data"),
        (("node", "site/nodes/node-0", "--data", "gone.npz"), "there is no file"),
        (("node", "site/nodes/node-0", "--data", "rows.npz", "--capacity", "2"), "capacity 2 is outside (0, 1]"),
        (("node", "site/nodes/node-0", "--data", "rows.npz", "--capacity", "fast"), "or a budget such as 20MB"),
        (("node", "site/nodes/node-0", "--data", "rows.npz", "--device", "tpu"), "unknown device 'tpu'"),
        (("node", "site/nodes/node-0", "--data", "rows.npz", "--threads", "-1"), "threads"),
        (("node", "bare", "--data", "rows.npz"), "bare/ca.crt is missing: copy the node's whole folder"),
    ],
)
def test_wrong_calls_are_refused(words: tuple[str, ...], reason: str, tmp_path: Path, capsys: Capture) -> None:
    init("--nodes", "1")
    np.savez("rows.npz", x=np.zeros((9, 1, 8, 8), np.uint8), y=np.arange(9) % 3)
    for name, file in (("mine", "precious"), ("done/run", "config.yaml"), ("bare", "node.yaml")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / file).write_text((Path("site/nodes/node-0") / "node.yaml").read_text())
    (tmp_path / "done" / "config.yaml").write_text("method: fedavg\n")
    capsys.readouterr()
    assert cli.main(["deploy", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert reason in err


def test_a_users_code_is_listed_in_node_yaml() -> None:
    (Path("mine.py")).write_text("from pa3dfl.methods import find\nBetter = find('fedavg')\n")
    site = init("--nodes", "1", "--method", "mine:Better")
    assert yaml.safe_load((site / "nodes" / "node-0" / "node.yaml").read_text())["code"] == ["mine:Better"]


@pytest.mark.parametrize(
    ("change", "words", "reason"),
    [
        (lambda s: (s / "token").unlink(), ("server", "site"), "site/token cannot be read (No such file or directory): "
         "`pa3dfl deploy init site` makes one"),
        (lambda s: (s / "token").chmod(0o644), ("server", "site"), "site/token is open to other users (mode 644): run "
         "`chmod 600 site/token`"),
        (lambda s: (s / "token").chmod(0o644), ("train", "site"), "site/token is open to other users"),
        (lambda s: (s / "token").chmod(0o644), ("register", "site"), "site/token is open to other users"),
        (lambda s: say(s / "server.yaml", proxies=["nginx"]), ("server", "site"), "proxies has 'nginx'"),
        (lambda s: say(s / "server.yaml", host="203.0.113.7"), ("server", "site"), "203.0.113.7:9093 cannot be"),
        (lambda s: say(s / "server.yaml", insecure=True), ("register", "site"), "its nodes have no keys"),
        (lambda s: say(s / "nodes" / "node-0" / "node.yaml", code="mine:Better"),
         ("node", "site/nodes/node-0", "--data", "rows.npz"), "expected a list of package.module:name"),
    ],
)  # fmt: skip
def test_problems_are_refused_before_anything_starts(
    change: Callable[[Path], object], words: tuple[str, ...], reason: str, capsys: Capture
) -> None:
    site = init("--nodes", "1")
    np.savez("rows.npz", x=np.zeros((9, 1, 8, 8), np.uint8), y=np.arange(9) % 3)
    change(site)
    capsys.readouterr()
    assert cli.main(["deploy", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert reason in err


def test_a_port_in_use_is_refused(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        init("--nodes", "1", "--port", str(port))
        capsys.readouterr()
        assert cli.main(["deploy", "server", "site"]) == 2
        assert f"127.0.0.1:{port} is in use: stop the program that listens" in capsys.readouterr().err


def say(path: Path, **changes: object) -> None:
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
