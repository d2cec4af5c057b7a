"""Pages in a real browser: what is shown, pointed at, picked and filtered."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic import two_methods, write_run

from browser import PLACE, chromium, opened, source
from pa3dfl.runs import page

pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")
pytest.importorskip("playwright", reason="playwright is not installed: pages are not tested in a browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium here: pages are not tested in a browser"),
]


def ids(tab: Any) -> list[int]:
    return [int(i) for i in tab.locator("#clients tbody tr td:first-child").all_inner_texts()]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_methods(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def tab(browser: Any, two: Path) -> Iterator[Any]:
    with opened(browser, two) as tab:
        tab.locator("#method").select_option("Pa3dFL")
        yield tab


def test_hovering_a_client_highlights_it_in_all_charts(tab: Any) -> None:
    tab.locator("#evaluation").fill("2")  # at the last position all α are 1, and their chart is left out
    for name, x, y in (("dots", "r", "acc"), ("map", "ex", "ey"), ("alpha", "r", "alpha")):
        tab.locator(f"#s-{name}").scroll_into_view_if_needed()
        tab.mouse.move(*tab.evaluate(PLACE, [name, 7, x, y]))
        tab.wait_for_function("document.querySelector('#card-id').textContent === '7'")
        assert source(tab, "active")["id"] == [7]
        assert source(tab, "cross")["x"] != []
        assert tab.locator("#clients tr.active td").first.inner_text() == "7"
        assert source(tab, "own-lines")["name"] == ["FedAvg", "Pa3dFL"]
        assert tab.locator("#own-key .key").all_inner_texts() == ["FedAvg", "Pa3dFL"]
        tab.locator("h1").hover()
        tab.wait_for_function("document.querySelector('#card-id').textContent.includes('worst')")
    tab.locator("#s-heat .bk-Figure").first.hover()
    assert source(tab, "active")["id"] != []
    tab.locator("#evaluation").fill("3")
    assert not tab.locator("#s-alpha").is_visible()


def test_a_client_pointed_at_is_named_in_sight_and_on_the_time_line(tab: Any) -> None:
    told = tab.locator("#pointed")
    tab.locator("#s-timeline").scroll_into_view_if_needed()
    tab.mouse.move(*tab.evaluate(PLACE, ["timeline", 2, "x", "y", "events", "y"]))
    told.get_by_text("Client 2: ").wait_for()
    assert source(tab, "active")["id"] == [2]
    assert (source(tab, "marked")["x"], source(tab, "marked")["y"]) == ([4], [2]), "a ring"
    box = told.bounding_box()
    assert 0 < box["y"] < box["y"] + box["height"] <= 900
    acc = source(tab, "active")["acc"][0]
    assert f"{acc:.1f}%, capacity" in told.inner_text()
    tab.locator("h1").hover()
    tab.wait_for_function("document.querySelector('#pointed').hidden")
    assert source(tab, "marked")["x"] == []
    sizes = source(tab, "events")
    assert dict(zip(sizes["marker"], sizes["size"], strict=True)) == {"x": 13, "circle": 9}


def test_a_clicked_client_stays_selected_until_cleared(tab: Any) -> None:
    tab.locator("#s-dots").scroll_into_view_if_needed()
    tab.mouse.click(*tab.evaluate(PLACE, ["dots", 12, "r", "acc"]))
    tab.locator("h1").hover()
    tab.wait_for_function("document.querySelector('#card-id').textContent === '12'")
    card = tab.locator("#card").inner_text()
    assert "% of the full model" in card
    assert "2 (60%), 3 (40%)" in card
    assert tab.locator("#clients tr.picked td").first.inner_text() == "12"
    tab.locator("#clear").click()
    assert source(tab, "active")["id"] == []


def test_filters_sorting_and_csv(tab: Any) -> None:
    tab.locator("#filter").select_option("worst")
    assert len(ids(tab)) == len(source(tab, "clients")["id"]) == 2
    tab.locator("#filter").select_option("fifth:4")
    assert sorted(ids(tab)) == [16, 17, 18, 19]
    tab.locator("#filter").select_option("class:3")
    assert sorted(ids(tab)) == [3, 13]
    tab.locator("#filter").select_option("events")
    assert sorted(ids(tab)) == [1, 2]
    tab.locator("#filter").select_option("all")
    tab.get_by_role("button", name="capacity %").click()
    assert ids(tab) == list(range(20))
    tab.get_by_role("button", name="capacity %").click()
    assert ids(tab) == list(range(19, -1, -1))
    tab.locator("#copy").click()
    tab.wait_for_function("pa3dfl.copied")
    lines = tab.evaluate("pa3dfl.copied").splitlines()
    assert (len(lines), lines[0].split(",")[:3], lines[1].split(",")[0]) == (
        21,
        ["client", "capacity %", "width"],
        "19",
    )
    columns = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    assert columns["MB received"] == "0.024"  # six rounds of 4,000 bytes


def test_the_slider_and_the_rule_change_the_shown_evaluation(tab: Any) -> None:
    before = source(tab, "clients")
    tab.locator("#evaluation").fill("0")
    first = source(tab, "clients")
    assert tab.locator("#evaluation-text").inner_text() == "round 2"
    assert first["ex"] != before["ex"]
    assert first["acc"] != before["acc"]
    tab.locator("#rule").select_option("received")
    assert source(tab, "clients")["acc"] == pytest.approx([v - 10 for v in first["acc"]])
    tab.locator("#rule").select_option("adapted")
    tab.locator("#evaluation").fill("3")
    assert source(tab, "clients")["acc"] == pytest.approx(before["acc"])


def test_methods_axes_and_layers_are_chosen(tab: Any) -> None:
    assert source(tab, "lines")["name"] == ["FedAvg", "Pa3dFL"]
    tab.locator("#chips button", has_text="fedavg").click()
    assert source(tab, "lines")["name"] == ["Pa3dFL"]
    tab.locator("#chips button", has_text="fedavg").click()
    tab.locator("#against").select_option("bytes")
    assert source(tab, "points")["x"][:3] == [4, 8, 12]
    tab.locator("#against").select_option("operations")
    assert source(tab, "points")["x"][0] == pytest.approx(2 * 10 * 8 * 1e6 / 1e9)
    before = source(tab, "matrix")["image"]
    tab.locator("#layer").select_option("1")
    assert source(tab, "matrix")["image"] != before
    assert len(source(tab, "taus")["xs"]) == 2
    tab.locator("#method").select_option("FedAvg")
    assert not tab.locator("#s-heat").is_visible()
    tab.locator("#method").select_option("Pa3dFL")
    assert tab.locator("#s-heat").is_visible()


def test_refusals_and_absences_are_on_the_time_line(tab: Any) -> None:
    found = source(tab, "events")
    assert sorted(zip(found["x"], found["y"], found["kind"], strict=True)) == [
        (3, 1, "no answer"), (4, 2, "update refused"),
    ]  # fmt: skip
    assert "1 update refused, 1 answer missing, in 6 rounds" in tab.locator("#timeline-none").inner_text()
    tab.locator("#s-timeline summary").click()
    assert "NaN in <b>head</b>" in tab.locator("#s-timeline .tbl").inner_text()
    tab.locator("#s-timeline summary").click()


def test_labels_have_shapes_and_lines_have_dashes(browser: Any, tab: Any, tmp_path: Path) -> None:
    """For people who cannot tell the colours apart."""
    marks = source(tab, "clients")["mark"]
    assert marks[:10] == [("circle", "square", "triangle")[k % 3] for k in range(10)]
    assert tab.locator("#key .key").all_inner_texts()[:4] == ["● label 0", "■ label 1", "▲ label 2", "● label 3"]
    hatched = "pa3dfl.chart('labels').renderers.filter(r => /^c/.test(r.name)).map(r => r.glyph.hatch_pattern.value)"
    assert tab.evaluate(hatched)[:4] == ["blank", "right_diagonal_line", "dot", "blank"]
    assert tab.locator("#bar-key i").nth(1).get_attribute("class") == "hatch1"
    for k in range(9):
        write_run(tmp_path / str(k), f"method-{k}", network=False)
    with opened(browser, page.write([tmp_path], tmp_path / "a.html")) as many:
        lines = source(many, "lines")
        assert len(set(zip(lines["colour"], map(str, lines["dash"]), strict=True))) == 9
        keys = many.locator("#chips i").evaluate_all("all => all.map(i => i.style.borderTopStyle)")
        assert keys == ["solid"] * 7 + ["dashed"] * 2


def test_by_keyboard_and_for_screen_readers(tab: Any) -> None:
    tab.locator("h1").hover()
    row = tab.locator("#clients tbody tr").first
    row.focus()
    tab.keyboard.press("ArrowDown")
    second = ids(tab)[1]
    assert source(tab, "active")["id"] == [second]
    tab.keyboard.press("Enter")
    assert tab.locator("#clients tr.picked td").first.inner_text() == str(second)
    tab.keyboard.press("Enter")
    charts = tab.locator("[data-root-id]")
    assert charts.count() == 9
    for chart in charts.all():
        assert chart.get_attribute("role") == "img"
        assert len(chart.get_attribute("aria-label")) > 20
    assert tab.locator("#controls select, #controls input").count() == tab.locator("#controls label").count()


def test_every_chart_has_a_table(tab: Any) -> None:
    tab.locator("#method").select_option("Pa3dFL")
    tab.locator("#evaluation").fill("2")  # with different α
    shown = {}
    for chart in tab.locator("[data-root-id]").all():
        behind = tab.locator(f"#{chart.get_attribute('aria-details')}")
        behind.locator("summary").press("Enter")
        table = behind.get_by_role("table")
        table.wait_for()
        assert len(table.get_attribute("aria-label")) > 4
        head, *rows = [row.split("\t") for row in table.locator("tr").all_inner_texts()]
        assert {len(row) for row in rows} == {len(head)}
        shown[behind.get_attribute("data-table")] = head, rows
    clients = source(tab, "clients")
    lengths = {"curves": 6, "own": 6, "tau": 6, "timeline": 2} | dict.fromkeys(
        ("dots", "labels", "alpha", "map", "heat"), 20
    )
    assert {name: len(rows) for name, (_, rows) in shown.items()} == lengths
    k = clients["id"].index(7)
    r, acc, x, y = (f"{clients[c][k]:.{digits}f}" for c, digits in (("r", 1), ("acc", 1), ("ex", 2), ("ey", 2)))
    assert ["7", r, acc, "7"] in shown["dots"][1]
    assert ["7", *(["0"] * 7), "60", "40", "0"] in shown["labels"][1]
    assert ["7", x, y] in [row[:3] for row in shown["map"][1]]
    assert shown["labels"][0] == ["client", *(f"label {g} %" for g in range(10))]
    # They are renewed with their charts: here the chart of the client in the card.
    first = tab.locator("#table-own td").all_inner_texts()
    tab.locator("#clients tbody tr").last.focus()
    tab.wait_for_function(
        "old => [...document.querySelectorAll('#table-own td')].map(e => e.textContent) != old", arg=",".join(first)
    )
    tab.locator("#filter").select_option("fifth:4")
    assert tab.locator("#table-dots tr").count() == 5
    tab.locator("#filter").select_option("all")
    for summary in tab.locator("main summary").all():
        summary.press("Enter")
    tab.wait_for_function("!document.querySelector('main details .tbl')")
    tab.locator("#evaluation").fill("3")
