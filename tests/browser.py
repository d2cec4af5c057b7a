"""A browser that looks at pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip

# Where a client is drawn in a chart, in pixels of the page.
PLACE = """([name, id, x, y, source = 'clients', key = 'id']) => {
  const chart = Bokeh.documents[0].get_model_by_name(name), view = [...Bokeh.index.roots].find(v => v.model === chart);
  const d = pa3dfl.source(source), k = Array.from(d[key]).indexOf(id);
  const box = view.canvas_view.el.getBoundingClientRect();
  return [box.x + view.frame.x_scale.compute(d[x][k]), box.y + view.frame.y_scale.compute(d[y][k])]; }"""


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
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
    assert wrong == [], wrong


def source(tab: Any, name: str) -> dict[str, list[Any]]:
    return tab.evaluate("n => { const d = pa3dfl.source(n); return Object.fromEntries("
                        "Object.entries(d).map(([k, v]) => [k, Array.from(v)])) }", name)  # fmt: skip


def painted(tab: Any) -> float:
    """Milliseconds from the call of the page to its first paint."""
    first = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"first paint {first:.0f} ms, charts {tab.evaluate('pa3dfl.ready'):.0f} ms")
    return float(first)
