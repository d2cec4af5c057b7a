"""What the documentation shows runs as it stands there: every page is a script of files, commands and doctests."""

import doctest
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_arrays
from pa3dfl import cli

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
TINY = [
    "--model", "cnn-fashion", "--clients", "6", "--per-round", "3", "--epochs", "2", "--batch", "10", "--rounds", "3",
    "--threads", "1", "--setting", "levels:1/4", "--eval-every", "3", "--device", "cpu", "--data", "tiny.npz", "--json",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the reader. Afterwards the caller's directory, path and threads are restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Language, title and text of what a page shows."""
    return BLOCK.findall((DOCS / page).read_text())


def examples(text: str) -> bool:
    return ">>>" in text


PAGES = [
    str(page.relative_to(DOCS))
    for page in sorted(DOCS.rglob("*.md"))
    if page.name != "add_a_method.md"  # below, on smaller data
    and any(language == "console" or examples(text) for language, _, text in blocks(str(page.relative_to(DOCS))))
]


@pytest.mark.parametrize("page", PAGES)
def test_every_example_of_a_page_runs(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for language, title, text in blocks(page):
        if title:
            (folder / title).write_text(text)
        elif language == "console":
            for command in re.findall(r"^\$ pa3dfl (.*)$", text, re.MULTILINE):
                assert cli.main(shlex.split(command)) == 0, (command, capsys.readouterr().err)
        elif language == "python" and examples(text):
            test = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
            test.globs = names
            assert runner.run(test, clear_globs=False).failed == 0, capsys.readouterr().out


def train(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[float]:
    capsys.readouterr()
    assert cli.main(["run", *words, *TINY]) == 0
    out = folder / json.loads(capsys.readouterr().out)["path"]
    return [json.loads(line)["train_loss"] for line in (out / "rounds.jsonl").read_text().splitlines()]


def test_the_method_that_the_page_adds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = [text for _, title, text in blocks("add_a_method.md") if title == "fedprox.py"]
    (folder / "fedprox.py").write_text(code)
    arrays = make_arrays(240)
    np.savez(folder / "tiny.npz", x=arrays.x, y=arrays.y)
    without = train(folder, capsys, "--method", "fedprox:FedProx", "--mu", "0", "--out", "zero")
    assert without == train(folder, capsys, "--method", "fedavg", "--out", "fedavg")
    assert without[-1] < without[0]
    pulled = train(folder, capsys, "--method", "fedprox:FedProx", "--mu", "10", "--out", "ten")
    assert pulled[-1] > without[-1]
