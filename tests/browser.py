"""A browser that looks at pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def started() -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        yield play.chromium.launch(executable_path=chromium(), args=list(FLAGS))


@contextmanager
def opened(browser: Any, file: Path, width: int = 1600, scheme: Any = "light") -> Iterator[Any]:
    """The page in a tab. Afterwards: no error, no warning, no request beyond the file."""
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    wrong: list[str] = []
    tab.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("pageerror", lambda e: wrong.append(str(e)))
    tab.on("dialog", lambda d: wrong.append(f"dialog {d.message}"))
    tab.on("request", lambda q: None if q.url.startswith(("file:", "data:", "blob:")) else wrong.append(q.url))
    tab.goto(file.as_uri())
    tab.wait_for_function("window.pa3dfl?.ready", timeout=60_000)
    tab.wait_for_function("Bokeh.documents[0].is_idle", timeout=60_000)
    yield tab
    tab.close()
    assert wrong == []
