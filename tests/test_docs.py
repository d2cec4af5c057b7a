"""What the documentation shows must run as it stands there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import make_arrays

DOCS = Path(__file__).parent.parent / "docs"
TINY = [
    "--model", "cnn-fashion", "--clients", "6", "--per-round", "3", "--epochs", "2", "--batch", "10", "--rounds", "3",
    "--threads", "1", "--setting", "levels:1/4", "--eval-every", "3", "--device", "cpu", "--data", "tiny.npz", "--json",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / "add_a_method.md").read_text(), re.DOTALL)
    (tmp_path / "fedprox.py").write_text(code)
    arrays = make_arrays(240)
    np.savez(tmp_path / "tiny.npz", x=arrays.x, y=arrays.y)
    return tmp_path


def train(folder: Path, *words: str) -> list[float]:
    command = [sys.executable, "-m", "pa3dfl.cli", "run", *words, *TINY]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    out = folder / json.loads(done.stdout)["path"]
    return [json.loads(line)["train_loss"] for line in (out / "rounds.jsonl").read_text().splitlines()]


def test_the_method_that_the_page_adds(folder: Path) -> None:
    without = train(folder, "--method", "fedprox:FedProx", "--mu", "0", "--out", "zero")
    assert without == train(folder, "--method", "fedavg", "--out", "fedavg")
    assert without[-1] < without[0]
    pulled = train(folder, "--method", "fedprox:FedProx", "--mu", "10", "--out", "ten")
    assert pulled[-1] > without[-1]
