"""A page in a real browser on a phone, on a wide screen and on paper."""

from pathlib import Path
from typing import Any

import pytest
from synthetic import two_methods

from browser import chromium, opened

pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")
pytest.importorskip("playwright", reason="playwright is not installed: pages are not tested in a browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium here: pages are not tested in a browser"),
]

# Pixels below the content of the card beside a taller one.
BLANK = """() => { const card = document.querySelector('#s-curves'), last = card.querySelector('details');
  return card.getBoundingClientRect().bottom - last.getBoundingClientRect().bottom; }"""
WIDTHS = "() => [...Bokeh.index.roots].map(view => view.el.getBoundingClientRect().width)"

# What lies on the paper when printing begins: charts with their places and ink, and the foot.
PAPER = """() => addEventListener('beforeprint', () => {
  window.onpaper = {theme: document.documentElement.dataset.theme,
    gone: ['controls', 'copy', 'table-dots'].every(id => !document.getElementById(id).checkVisibility()),
    foot: [...document.querySelectorAll('footer pre')].map(e => e.offsetHeight && e.textContent),
    charts: [...document.querySelectorAll('.still')].map(still => {
      const box = still.getBoundingClientRect(), card = still.closest('section').getBoundingClientRect();
      const canvas = document.createElement('canvas'), ctx = canvas.getContext('2d', {willReadFrequently: true});
      [canvas.width, canvas.height] = [still.naturalWidth, still.naturalHeight];
      ctx.drawImage(still, 0, 0);
      const pixels = ctx.getImageData(0, 0, canvas.width, canvas.height).data, ink = [];
      for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] === 255)
        ink.push(pixels[i] + pixels[i + 1] + pixels[i + 2]);
      const inside = card.top < box.top && box.bottom <= card.bottom;
      return {inside, width: box.width, ink: ink.length, darkest: Math.min(...new Set(ink))};
    })}; })"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_methods(tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_and_wide(browser: Any, two: Path, scheme: str) -> None:
    with opened(browser, two, width=380, scheme=scheme) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 380
        assert tab.evaluate("document.documentElement.dataset.theme") == scheme
        assert 300 < max(tab.evaluate(WIDTHS)) <= 380
        tab.set_viewport_size({"width": 1600, "height": 900})
        tab.wait_for_function(f"Math.max(...({WIDTHS})()) > 900")
        assert tab.evaluate(BLANK) < 30


def test_on_paper_a_dark_wide_page_is_light_and_whole(browser: Any, two: Path) -> None:
    with opened(browser, two, scheme="dark") as tab:
        tab.locator("#method").select_option("Pa3dFL")
        tab.locator("#evaluation").fill("2")
        before = tab.evaluate(WIDTHS)
        tab.evaluate(PAPER)
        tab.emulate_media(media="print")
        pdf = tab.pdf(format="A4", print_background=True)
        tab.emulate_media(media="screen")
        paper = tab.evaluate("onpaper")
        assert (paper["theme"], len(paper["charts"])) == ("light", 9)
        assert paper["gone"]
        for chart in paper["charts"]:
            assert chart["inside"]
            assert 600 < chart["width"] <= 700, "as wide as the paper"
            assert chart["ink"] > 2000
            assert chart["darkest"] < 300, "dark ink"
        assert pdf.count(b"/Subtype /Image") >= 9, "they are in the file"
        assert len(paper["foot"]) == 4
        assert "pa3dfl run" in paper["foot"][0]
        assert "seed: 0" in paper["foot"][1]
        tab.wait_for_function("!document.querySelector('.still')")
        assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
        assert not tab.locator("footer pre").first.is_visible()
        tab.wait_for_function(f"before => JSON.stringify(({WIDTHS})()) === JSON.stringify(before)", arg=before)
