"""Pictures of a page for the documentation: `python tools/page_pictures.py runs/demo/report.html docs/images`.

They need playwright, Pillow and a Chromium. `page.png` is 1200 pixels wide, light; `page-phone.png` shows two parts at
380 pixels, dark.
"""

import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

GAP = 12
BOTTOM = "name => document.querySelector(name).getBoundingClientRect().bottom + scrollY"
TOP = "name => document.querySelector(name).getBoundingClientRect().top + scrollY"


def picture(tab: Page, path: Path, top: float, height: float) -> Image.Image:
    width = tab.viewport_size["width"] if tab.viewport_size else 0
    tab.screenshot(path=path, full_page=True, clip={"x": 0, "y": top, "width": width, "height": height})
    with Image.open(path) as image:
        return image.convert("RGB")


def main(page: Path, out: Path) -> None:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--headless", "--no-sandbox"])
        tabs = []
        for width, scheme in ((1200, "light"), (380, "dark")):
            tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
            tab.goto(page.resolve().as_uri())
            tab.wait_for_function("window.pa3dfl?.ready")
            tab.wait_for_timeout(1000)
            tabs.append(tab)
        wide, phone = tabs
        picture(wide, out / "page.png", 0, wide.evaluate(BOTTOM, "#s-dots") + GAP)
        file, height = out / "page-phone.png", phone.evaluate(BOTTOM, "#s-curves") + GAP
        parts = [picture(phone, file, top, height) for top in (0, phone.evaluate(TOP, "#s-dots") - GAP)]
        both = Image.new("RGB", (2 * 380 + 20, round(height)), "white")
        for k, part in enumerate(parts):
            both.paste(part, (k * 400, 0))
        both.save(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
