"""Flower is an extra: whoever asks for it without having it is told what to install, in one line."""

import sys

import pytest

from pa3dfl import cli


@pytest.mark.parametrize("words", [("run", "--engine", "flower", "--out", "runs/none"), ("deploy", "init", "site")])
def test_without_flower_the_error_says_what_to_install(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [n for n in sys.modules if n.startswith("pa3dfl.engines.flower")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [n for n in sys.modules if n.split(".")[0] == "flwr"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    assert cli.main(list(words)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "pip install 'pa3dfl[flower]'" in err
