"""A page of runs: one HTML file with linked charts, which opens offline."""

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from pa3dfl.core.errors import Interrupted, UserError

HINT = "the page needs Bokeh: pip install 'pa3dfl[page]'"
NAME = "report.html"
SHARE = 0.005
"""The largest share of a run's time for renewing its page, without the first import of Bokeh."""


def load() -> None:
    """Load Bokeh and make the parts that all pages share: the longest work for the first page of a process."""
    if importlib.util.find_spec("bokeh") is None:
        raise UserError(HINT)
    from pa3dfl.runs.page.html import library, skeleton

    skeleton()
    library()


def rendered(paths: Sequence[Path], running: bool = False) -> str:
    """The page of all runs among `paths`, which are run directories or folders of them."""
    load()
    from pa3dfl.runs.page.content import content, find
    from pa3dfl.runs.page.headline import headline
    from pa3dfl.runs.page.html import page

    runs = find(paths)
    shown = content(runs)
    return page(runs, shown, headline(runs, shown["runs"]), running)


def write(paths: Sequence[Path], out: Path, running: bool = False) -> Path:
    text = rendered(paths, running)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")  # readers never see an incomplete page
    part.write_text(text, "utf-8", "replace")
    os.replace(part, out)
    return out


@dataclass(frozen=True)
class Embedded:
    """A page as the output of a notebook's cell."""

    html: str = field(repr=False)
    height: int

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self.height}px;border:0"
        return f'<iframe title="the page of a run" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


class Renewed:
    """Writes the page during runs, as often as its cost allows, and after a run. An error here never stops a run."""

    def __init__(
        self, folder: Path, say: Callable[[str], None], runs: Sequence[Path] = (), name: str = NAME
    ) -> None:  # fmt: skip
        """The page of `runs`, or of all runs in the folder."""
        self.runs, self.out, self.say = runs or [folder], folder / name, say
        self.last, self.cost = time.monotonic(), 0.0  # the first page comes with the first evaluation
        self.failed = self.called = False

    def __enter__(self) -> "Renewed":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the page at the end of a run, also of a stopped one; not if an error came before the first page."""
        if self.called or kind is None or issubclass(kind, Interrupted):
            self()

    def __call__(self, record: Mapping[str, Any] | None = None) -> None:
        """Called after a round with its record, and at the end without one."""
        if record is not None and "test_accuracy" not in record:
            return
        self.called, finished = True, record is None
        if self.failed or (not finished and time.monotonic() - self.last < self.cost / SHARE):
            return
        try:
            load()
            started = time.monotonic()
            write([run for run in self.runs if run.is_dir()], self.out, running=not finished)
        except Exception as e:  # any error here must not stop the run
            self.failed = True
            self.say(f"no page is written, the run goes on: {e}")
            return
        self.last = time.monotonic()
        self.cost = self.last - started
