"""A disk that refuses: the system's own errors, made with a limit on the size of files in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import torch

from pa3dfl.core.files import errors_name, read_tensors, write_atomically, write_tensors
from pa3dfl.experiments import api
from pa3dfl.federation.checkpoint import Checkpoints

# Once the named file exists, no file may grow beyond 8 kB.
LIMITED = """
import pathlib, resource, sys, threading, time
def limit():
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.001)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
threading.Thread(target=limit, daemon=True).start()
from pa3dfl.cli import main
sys.exit(main(sys.argv[2:]))
"""
RUN = """run --method fedavg --data fashion-mnist-10k --clients 40 --per-round 1 --rounds 30 --epochs 1 --eval-every 30
--eval-clients 2 --threads 1 --device cpu --setting levels:1/256 --out run"""


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_atomically(file, b"one")
    with pytest.raises(TypeError):
        write_atomically(file, "two")  # type: ignore[arg-type]
    assert file.read_bytes() == b"one"
    assert [f.name for f in tmp_path.iterdir()] == ["a"]
    write_tensors(file, {"w": torch.ones(3)})
    assert read_tensors(file)["w"].tolist() == [1, 1, 1]
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


def test_errors_name_the_file() -> None:
    path = Path("some/file")
    with pytest.raises(OSError, match="No space left on device: 'some/file'"), errors_name(path):
        raise OSError(28, "No space left on device")
    for words in ("I/O error: File too large (os error 27)", "IoError(Os { code: 27, kind: FileTooLarge })"):
        with pytest.raises(OSError, match="File too large: 'some/file'"), errors_name(path):
            raise safetensors.SafetensorError(f"Error while serializing: {words}")
    with pytest.raises(OSError, match="'its/own'"), errors_name(path):
        raise OSError(28, "No space left on device", "its/own")
    with pytest.raises(safetensors.SafetensorError, match="header"), errors_name(path):
        raise safetensors.SafetensorError("invalid header")


@pytest.mark.parametrize("when", ["run", "run/checkpoints/state.json"])
def test_a_full_disk_is_one_line_and_the_checkpoint_before_loads(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", LIMITED, when, *RUN.split()]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    last = refused.stderr.splitlines()[-1]
    said = re.fullmatch(r"pa3dfl: checkpoint of round (\d+) could not be written to run/checkpoints: (.*)", last)
    assert said, last
    assert said[2] == "File too large"
    saved = Checkpoints(Path("run/checkpoints")).load(torch.device("cpu"))
    assert (saved.round if saved else 0) == int(said[1]) - 1
    assert not list(Path("run/checkpoints").glob("*.part"))
    api.resume(Path("run"))
    assert Path("run/summary.json").exists()
