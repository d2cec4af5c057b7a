"""The disk of the server is full in the middle of a round. A small tmpfs holds the server's folder: for root only."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from compared import CAPACITIES, records, same, saved, survivors
from live import Live, finish
from machines import OPTIONS

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("disk")
    (folder / "site").mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64m", "pa3dfl-test", str(folder / "site")]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        with Live(folder, CAPACITIES, **(OPTIONS | {"method": "ditto", "per_round": 3, "timeout": 60.0})) as live:
            shutil.move(live.deployment.nodes, folder / "nodes")
            live.server()
            for i in range(3):
                live.node(i, folder=f"nodes/node-{i}")
            yield live
    finally:
        subprocess.run(["umount", "--lazy", str(folder / "site")], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the disk completely within the block."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(1 << 16))
        except OSError:
            pass
        try:
            while True:
                f.write(b"0")
        except OSError:
            pass
    assert os.statvfs(folder).f_bavail == 0
    try:
        yield
    finally:
        ballast.unlink()


def test_a_training_on_a_full_disk_ends_and_resumes(live: Live) -> None:
    """The training ends with one line; with free space again, the resumed training ends with the same bits."""
    live.configure(rounds=6, eval_every=3)
    training = live.train("--overwrite")
    live.wait_for_round(2)
    time.sleep(1)
    with full(live.deployment.path):
        code, out = finish(training)
        assert code == 2, out
        assert any(why in out.splitlines()[-1] for why in ("No space left", "--resume` continues")), out
        assert "Traceback" not in out
        time.sleep(25)  # every node has sent a heartbeat in vain
        kept = len(records(live.deployment.run))
        assert 2 <= kept < 6
    code, out = finish(live.train("--resume"))
    assert code == 0, out
    made = records(live.deployment.run)
    assert [r["round"] for r in made] == [1, 2, 3, 4, 5, 6]
    assert [(r["missing"], r["rejected"]) for r in made] == [([], [])] * 6
    assert same(survivors(live.folder, CAPACITIES, [[]] * 6)[0], saved(live.deployment.run).server)
