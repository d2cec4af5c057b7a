"""The tool as a whole: exit codes, one line for every trouble, help for every command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pa3dfl import cli
from pa3dfl.core.errors import Interrupted, UserError
from workspace import RUN, Capture

pytestmark = pytest.mark.usefixtures("workspace")


def test_every_error_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of other libraries too; errors of the system have code 1."""
    for error, code, line in (
        (UserError("a\n  b\n"), 2, "pa3dfl: a b\n"),
        (OSError(28, "No space left on device", "x/y"), 1, "pa3dfl: x/y: No space left on device\n"),
        (
            torch.OutOfMemoryError("Tried to allocate 20 MiB"),
            1,
            "pa3dfl: out of GPU memory: stop other programs, use a smaller --batch, or use --device cpu\n",
        ),
        (KeyboardInterrupt(), 130, "pa3dfl: stopped\n"),
        (Interrupted(7, Path("x")), 130, "pa3dfl: stopped after 7 rounds: continue with `pa3dfl resume x`\n"),
    ):

        def fail(argv: list[str], error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(cli, "COMMANDS", {"run": fail})
        assert cli.main(["run"]) == code
        assert capsys.readouterr().err == line


def program(*argv: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "pa3dfl.cli", *argv]
    return subprocess.run(words, capture_output=True, text=True, env=env, timeout=120)


def test_the_program_refuses_with_code_2_and_one_line() -> None:
    """In a process of its own, where warnings of libraries would show."""
    done = program(*RUN, "--p-min", "1/64")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(
        "pa3dfl: model 'cnn-fashion': dimension 0 of conv1.weight is 32 wide, and 32 × 1/64 = 0.5"
    )
    assert done.stderr.count("\n") == 1


def test_the_program_succeeds_with_code_0(tmp_path: Path) -> None:
    done = program(*RUN, "--method", "fedavg", "--out", str(tmp_path / "run"), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["method"] == "fedavg"
    lines = done.stderr.splitlines()
    assert lines
    assert all(line.startswith("pa3dfl: fedavg on tiny.npz: ") for line in lines)


def test_help_and_version(capsys: Capture) -> None:
    assert cli.main([]) == 2
    usage = capsys.readouterr().out
    assert cli.main(["--help"]) == cli.main(["-h"]) == 0
    assert capsys.readouterr().out == 2 * usage
    assert all(f"pa3dfl {command}" in usage for command in cli.COMMANDS)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pa3dfl ")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: pa3dfl {command}")
    assert "--json" in out or command == "deploy"


def test_help_shows_the_options_of_the_given_method(capsys: Capture) -> None:
    for argv, own in ((["run", "--method", "ditto", "--help"], "ditto"), (["run", "--help"], "pa3dfl")):
        with pytest.raises(SystemExit):
            cli.main(argv)
        assert f"options of {own}" in capsys.readouterr().out
