"""A deployment that is copied while it trains, and goes on elsewhere with the same bits."""

import resource
import shutil
import sqlite3
import stat
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import CAPACITIES, alone, records, same, saved
from machines import Machines

from pa3dfl import cli
from pa3dfl.deploy.folder import DeploymentFolder

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Lost(BaseException):
    """Delete the server's folder, as if its machine were lost."""


def test_train_back_up_restore_resume(tmp_path: Path) -> None:
    """The backup is made within round 3 of 4; everything that round 3 writes later is lost with the machine."""
    machines = Machines(tmp_path, CAPACITIES, method="ditto", rounds=4)
    left = 2

    def before(node: int, order: dict[str, Any]) -> None:
        nonlocal left
        if order["kind"] == "train" and order["round"] == 3:
            left -= 1
            if left == 1:
                assert cli.main(["deploy", "backup", "site", "site.tar"]) == 0
            if left == 0:
                raise Lost

    machines.before = before
    with pytest.raises(Lost):
        machines.train()
    for entry in machines.deployment.path.iterdir():
        if entry.name != "nodes":  # they are on machines of their own
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    assert cli.main(["deploy", "restore", "site.tar", "elsewhere"]) == 0
    machines.before, machines.deployment = lambda *_: None, DeploymentFolder(tmp_path / "elsewhere")
    machines.train(resume=True)
    one = alone(method="ditto", rounds=4)
    assert records(one) == records(machines.deployment.run)
    assert same(saved(one).server, saved(machines.deployment.run).server)


def test_files_of_a_backup(tmp_path: Path) -> None:
    """All that the server needs, readable by its owner only; no private key of a node, no file of a running process."""
    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=1)
    site = machines.deployment
    with closing(sqlite3.connect(site.path / "superlink.db")) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("create table nodes (id)")
        db.execute("insert into nodes values (7)")
        db.commit()
        assert (site.path / "superlink.db-wal").stat().st_size > 0  # the row is not in the database's own file yet
        machines.train()
        (site.run / "left.part").write_text("half")
        assert cli.main(["deploy", "backup", "site", "site.tar"]) == 0
    assert stat.S_IMODE(Path("site.tar").stat().st_mode) == 0o600
    assert not list(tmp_path.glob("site/.backup*"))
    assert cli.main(["deploy", "restore", "site.tar", "elsewhere"]) == 0
    there = {str(p.relative_to("elsewhere")) for p in Path("elsewhere").rglob("*") if p.is_file()}
    here = {str(p.relative_to(site.path)) for p in site.path.rglob("*") if p.is_file()}
    gone = {p for p in here - there if not p.startswith("nodes/")}
    assert gone <= {"train.lock", "run/left.part", "superlink.db-wal", "superlink.db-shm"}
    assert there <= here
    for name in there - {"superlink.db"}:
        assert (Path("elsewhere") / name).read_bytes() == (site.path / name).read_bytes()
        assert (Path("elsewhere") / name).stat().st_mode == (site.path / name).stat().st_mode
    with closing(sqlite3.connect("elsewhere/superlink.db")) as db:
        assert db.execute("select id from nodes").fetchall() == [(7,)]


def test_a_checkpoint_that_is_committed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is made anew: the manifest and the files that it names are of one round."""
    from pa3dfl.deploy import backup

    machines = Machines(tmp_path, CAPACITIES, method="fedavg", rounds=2)
    machines.train()
    real, calls = backup._link, []

    def link(folder: Path, copy: Path, top: bool = False) -> None:
        real(folder, copy, top)
        if top:
            calls.append(folder)
            if len(calls) == 1:
                machines.configure(rounds=3)
                machines.train(resume=True)

    monkeypatch.setattr(backup, "_link", link)
    assert cli.main(["deploy", "backup", "site", "site.tar"]) == 0
    assert len(calls) == 2
    assert cli.main(["deploy", "restore", "site.tar", "elsewhere"]) == 0
    assert saved(tmp_path / "elsewhere" / "run").round == 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("backup", "nowhere", "x.tar"), "nowhere is not a deployment"),
        (("backup", "site", "no/x.tar"), "no/x.tar could not be written"),
        (("restore", "gone.tar", "new"), "gone.tar cannot be restored"),
        (("restore", "text.tar", "new"), "text.tar cannot be restored (it is no archive)"),
        (("restore", "other.tar", "new"), "other.tar is not a backup of a deployment"),
        (("restore", "site.tar", "site"), "site is not empty: choose another folder"),
        (("restore", "site.tar", "text.tar"), "text.tar is not empty: choose another folder"),
    ],
)
def test_wrong_backups_are_refused(words: tuple[str, ...], reason: str, capsys: Capture) -> None:
    assert cli.main(["deploy", "init", "site", "--nodes", "1"]) == 0
    assert cli.main(["deploy", "backup", "site", "site.tar"]) == 0
    Path("text.tar").write_text("text")
    with tarfile.open("other.tar", "w") as archive:
        archive.add("text.tar")
    capsys.readouterr()
    assert cli.main(["deploy", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert reason in err
    assert not Path("new").exists()


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("why", ["would be extracted to", "File too large"])
def test_a_restore_that_fails_halfway_leaves_nothing(existed: bool, why: str, capsys: Capture) -> None:
    """The last file of the archive cannot be written; the others were unpacked before."""
    assert cli.main(["deploy", "init", "site", "--nodes", "1"]) == 0
    assert cli.main(["deploy", "backup", "site", "site.tar"]) == 0
    shutil.copy("site.tar", "broken.tar")
    Path("big").write_bytes(bytes(1 << 20))
    with tarfile.open("broken.tar", "a") as archive:
        archive.add("big", "../elsewhere" if "extracted" in why else "./big")
    if existed:
        Path("new/.restore-killed/run").mkdir(parents=True)  # by a restore that was killed
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, limits[1]))
    try:
        assert cli.main(["deploy", "restore", "broken.tar", "new"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "broken.tar cannot be restored" in err
    assert why in err
    assert Path("new").exists() is existed
    assert not existed or not list(Path("new").iterdir())
    assert not Path("elsewhere").exists()
    assert cli.main(["deploy", "restore", "site.tar", "new"]) == 0
    assert Path("new/server.yaml").read_bytes() == Path("site/server.yaml").read_bytes()
    assert not list(Path("new").glob(".*"))
    assert stat.S_IMODE(Path("new").stat().st_mode) == 0o700
