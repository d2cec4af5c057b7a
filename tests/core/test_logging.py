"""Messages: none from the library, one line each from the program."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from pa3dfl.core.logging import log, messages_are_shown, show_messages


@pytest.fixture
def shown() -> Iterator[None]:
    before, level = list(log.handlers), log.level
    show_messages()
    yield
    log.handlers[:] = before
    log.setLevel(level)


def test_a_library_prints_nothing() -> None:
    code = "from pa3dfl.core.logging import log; log.error('x'); log.info('y')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.usefixtures("shown")
def test_a_program_prints_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    show_messages()  # again: no line twice
    assert messages_are_shown()
    log.info("two\nlines,  \x1b[2J and %s", "an escape")
    log.debug("not this one")
    assert capsys.readouterr().err == "pa3dfl: two lines, [2J and an escape\n"


@pytest.mark.usefixtures("shown")
def test_markup_in_messages_is_not_interpreted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    log.warning("[red]x[/red]" + 100 * "y")
    err = capsys.readouterr().err
    assert f"pa3dfl: [red]x[/red]{100 * 'y'}" in err  # neither read as markup nor wrapped
