"""The files that systemd and Compose start a deployment with, checked by their own readers."""

import configparser
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from pa3dfl import __version__, cli

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(*words: str, folder: str = "site") -> Path:
    assert cli.main(["deploy", "init", folder, "--nodes", "2", *words]) == 0
    return Path(folder).resolve()


@pytest.mark.parametrize("folder", ["site", 'my 100% "own" $HOME\'s site'])
def test_files_for_systemd(folder: str) -> None:
    site = init("--service", "systemd", folder=folder)
    files = [
        site / "pa3dfl-server.service",
        *(site / "nodes" / f"node-{i}" / f"pa3dfl-node-{i}.service" for i in (0, 1)),
    ]
    for file, role, place in zip(files, ("server", "node", "node"), (site, *map(Path, NODES)), strict=True):
        unit = configparser.ConfigParser(interpolation=None, delimiters="=", strict=True)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(file.read_text())
        service = dict(unit["Service"])
        words = [w.replace("%%", "%").replace("$$", "$") for w in shlex.split(service["ExecStart"])]
        assert words == [sys.executable, "-m", "pa3dfl.cli", "deploy", role, str(place)]
        assert (service["User"], service["Restart"], service["UMask"]) == ("pa3dfl", "on-failure", "0077")
        assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "strict")
        assert shlex.split(service["ReadWritePaths"].replace("%%", "%")) == [str(place)]
        assert service["PrivateDevices"] == ("yes" if role == "server" else "no")
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


NODES = ("/var/lib/pa3dfl/node-0", "/var/lib/pa3dfl/node-1")


def test_compose_files() -> None:
    compose = pytest.importorskip("compose_spec", reason="pip install compose-spec")
    site = init("--service", "compose")
    for folder, role in ((site, "server"), (site / "nodes" / "node-0", "node"), (site / "nodes" / "node-1", "node")):
        text = (folder / "compose.yaml").read_text()
        assert compose.PyCompose.from_yaml(text).service_names() == [role]
        service = yaml.safe_load(text)["services"][role]
        assert service["command"] == ["pa3dfl", "deploy", role, f"/{role}"]
        assert service["volumes"] == [f".:/{role}"]
        assert service["user"] == f"{os.getuid()}:{os.getgid()}"
        assert f"]=={__version__}'" in service["build"]["dockerfile_inline"]
        with pytest.raises(ValueError, match="sometimes"):
            compose.PyCompose.from_yaml(text.replace("restart: on-failure", "restart: sometimes"))


def test_files_changed_by_hand_are_kept(capsys: Capture) -> None:
    """The files can be added to a deployment that was made without them."""
    site = init()
    assert not list(site.rglob("*.service"))
    init("--service", "systemd")
    assert len(list(site.rglob("*.service"))) == 3
    (site / "pa3dfl-server.service").write_text("mine")
    shutil.rmtree(site / "nodes" / "node-1")  # moved to its machine
    init("--service", "systemd")
    assert (site / "pa3dfl-server.service").read_text() == "mine"
    assert not (site / "nodes" / "node-1").exists()
    capsys.readouterr()
    assert cli.main(["deploy", "init", "new", "--service", "cron"]) == 2
    assert "service is 'cron': expected one of systemd, compose" in capsys.readouterr().err
    assert not Path("new").exists()
