"""Where command lines are tested: small data, a finished run, and many files that are not what they should be."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pa3dfl import cli

Capture = pytest.CaptureFixture[str]

RUN = ("run", "--data", "tiny.npz", "--clients", "6", "--rounds", "1", "--epochs", "1", "--batch", "8",
       "--model", "cnn-fashion", "--device", "cpu", "--threads", "1")  # fmt: skip
FILES = {
    "broken.yaml": "rounds: [1\nseed: 2\n",
    "list.yaml": "- rounds\n- 3\n",
    "empty.yaml": "",
    "key.yaml": "round: 3\n",
    "number.yaml": "1: 3\n",
    "true.yaml": "on: 3\n",
    "overwrite.yaml": "overwrite: true\n",
    "config.yaml": "config: 3\n",
    "value.yaml": "rounds: many\n",
    "method.yaml": "method: nothing\n",
    "date.yaml": "seed: 2026-13-45\n",
    "short.csv": "client,r\n0,1\n1,1\n",
    "columns.csv": "name,r\n0,1\n",
    "range.csv": "client,r\n" + "".join(f"{i},{1 + i}\n" for i in range(6)),
    "file": "in the way",
    "climine.py": "def make(width):\n    return 3\n",
    "bad.npz": "not an archive",
}


@pytest.fixture(scope="session")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data, one finished run in `done`, and many files that are not what they should be."""
    path = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    y = np.arange(90) % 4
    x = np.clip(rng.integers(0, 256, (4, 1, 8, 8))[y] + rng.normal(0, 60, (90, 1, 8, 8)), 0, 255).astype(np.uint8)
    np.savez(path / "tiny.npz", x=x, y=y)
    np.savez(path / "owned.npz", x=x, y=y, client=np.arange(90) % 5)
    for name, content in FILES.items():
        (path / name).write_text(content)
    (path / "full").mkdir()
    (path / "full" / "precious").write_text("mine")
    (path / "void").mkdir()
    here = Path.cwd()
    os.chdir(path)
    try:
        assert cli.main([*RUN, "--out", "done"]) == 0
    finally:
        os.chdir(here)
    return path


@pytest.fixture
def workspace(stocked: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory while a command line is tested."""
    threads = torch.get_num_threads()
    monkeypatch.chdir(stocked)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield stocked
    torch.set_num_threads(threads)


def refused(capsys: Capture, *argv: str) -> str:
    """The one line that a wrong call gets."""
    capsys.readouterr()
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pa3dfl: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.removeprefix("pa3dfl: ").strip()


def printed(capsys: Capture, *argv: str) -> Any:
    capsys.readouterr()
    assert cli.main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)
