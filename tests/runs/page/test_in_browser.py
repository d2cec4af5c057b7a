"""Pages in a real browser: what is shown, pointed at, picked, filtered and printed."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import write_run

from browser import chromium, opened, started
from conftest import make_arrays
from pa3dfl.experiments import api
from pa3dfl.runs import page

pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")
pytest.importorskip("playwright", reason="playwright is not installed: pages are not tested in a browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium here: pages are not tested in a browser"),
]

LATE = {3: {"missing": [1]}, 4: {"rejected": [{"client": 2, "reason": "NaN in <b>head</b>"}]}}
# Where a client is drawn in a chart, in pixels of the page.
PLACE = """([name, id, x, y, source = 'clients', key = 'id']) => {
  const chart = Bokeh.documents[0].get_model_by_name(name), view = [...Bokeh.index.roots].find(v => v.model === chart);
  const d = pa3dfl.source(source), k = Array.from(d[key]).indexOf(id);
  const box = view.canvas_view.el.getBoundingClientRect();
  return [box.x + view.frame.x_scale.compute(d[x][k]), box.y + view.frame.y_scale.compute(d[y][k])]; }"""

# Pixels below the content of the card beside a taller one.
BLANK = """() => { const card = document.querySelector('#s-curves'), last = card.querySelector('details');
  return card.getBoundingClientRect().bottom - last.getBoundingClientRect().bottom; }"""
WIDTHS = "() => [...Bokeh.index.roots].map(view => view.el.getBoundingClientRect().width)"


def source(tab: Any, name: str) -> dict[str, list[Any]]:
    return tab.evaluate("n => { const d = pa3dfl.source(n); return Object.fromEntries("
                        "Object.entries(d).map(([k, v]) => [k, Array.from(v)])) }", name)  # fmt: skip


def painted(tab: Any) -> float:
    """Milliseconds from the call of the page to its first paint."""
    first = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"first paint {first:.0f} ms, charts {tab.evaluate('pa3dfl.ready'):.0f} ms")
    return float(first)


def ids(tab: Any) -> list[int]:
    return [int(i) for i in tab.locator("#clients tbody tr td:first-child").all_inner_texts()]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("two")
    for name in ("pa3dfl", "fedavg"):
        write_run(path / name, name, clients=20, network=name == "pa3dfl", events=LATE)
    return page.write([path], path / "a.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as browser:
        yield browser


@pytest.fixture(scope="module")
def tab(browser: Any, two: Path) -> Iterator[Any]:
    with opened(browser, two) as tab:
        tab.locator("#method").select_option("Pa3dFL")
        yield tab


def test_a_client_that_is_pointed_at_lights_up_everywhere(tab: Any) -> None:
    tab.locator("#evaluation").fill("2")  # at the last position all α are 1, and their chart is left out
    for name, x, y in (("dots", "r", "acc"), ("map", "ex", "ey"), ("alpha", "r", "alpha")):
        tab.locator(f"#s-{name}").scroll_into_view_if_needed()
        tab.mouse.move(*tab.evaluate(PLACE, [name, 7, x, y]))
        tab.wait_for_function("document.querySelector('#card-id').textContent === '7'")
        assert source(tab, "active")["id"] == [7]
        assert source(tab, "cross")["x"] != []
        assert tab.locator("#clients tr.active td").first.inner_text() == "7"
        assert source(tab, "own-lines")["name"] == ["FedAvg", "Pa3dFL"]
        tab.locator("h1").hover()
        tab.wait_for_function("document.querySelector('#card-id').textContent.includes('worst')")
    tab.locator("#s-heat .bk-Figure").first.hover()
    assert source(tab, "active")["id"] != []
    tab.locator("#evaluation").fill("3")
    assert not tab.locator("#s-alpha").is_visible()


def test_a_pick_stays_and_is_cleared(tab: Any) -> None:
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


def test_the_slider_moves_clients_and_the_rule_changes_numbers(tab: Any) -> None:
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


def test_seeds_have_a_band_and_are_chosen(browser: Any, tmp_path: Path) -> None:
    """Also of a method whose hyper-network has no temperatures."""
    for seed in (0, 1):
        path = write_run(tmp_path / str(seed), "pfedhn", seed=seed, events={6: {"seconds": 4.5}})
        for file in (path / "history").glob("round-*.npz"):
            with np.load(file) as arrays:
                kept = {k: v for k, v in arrays.items() if "tau" not in k}
            np.savez(file, **kept)
    curves = [[json.loads(line) for line in (tmp_path / s / "rounds.jsonl").open()] for s in "01"]
    both = [[100 * r["test_accuracy"] for r in c if "test_accuracy" in r] for c in curves]
    with opened(browser, page.write([tmp_path], tmp_path / "a.html")) as tab:
        [ys] = source(tab, "bands")["ys"]
        low, high = (list(map(f, zip(*both, strict=True))) for f in (min, max))
        assert ys == pytest.approx([*low, *high[::-1]], abs=0.01)
        tab.locator("#against").select_option("seconds")
        assert source(tab, "points")["x"] == [3, 6, 12]
        first = source(tab, "clients")["acc"]
        tab.locator("#seed").select_option("1")
        assert source(tab, "clients")["acc"] != first
        assert tab.locator("#s-heat").is_visible()
        assert "more similar parameters" in tab.locator("#heat-how").inner_text()
        assert not tab.locator("#s-tau").is_visible()
        for section in tab.locator("section").all():
            assert len(section.locator(".how").first.text_content()) > 20, "a chart says how to read it"


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
    """For those who cannot tell their colours apart."""
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


def test_a_table_stands_behind_every_chart(tab: Any) -> None:
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_and_on_paper(browser: Any, two: Path, scheme: str) -> None:
    with opened(browser, two, width=380, scheme=scheme) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 380
        assert tab.evaluate("document.documentElement.dataset.theme") == scheme
        assert 300 < max(tab.evaluate(WIDTHS)) <= 380
        tab.set_viewport_size({"width": 1600, "height": 900})
        tab.wait_for_function(f"Math.max(...({WIDTHS})()) > 900")
        assert tab.evaluate(BLANK) < 30
        tab.emulate_media(media="print")
        assert not tab.locator("#controls").is_visible()
        assert tab.locator("#s-curves").is_visible()
        assert len(tab.pdf()) > 20_000


def test_fourteen_methods_are_painted_within_two_seconds(browser: Any, tmp_path: Path) -> None:
    for k in range(14):
        write_run(tmp_path / "runs" / f"{k:02}", f"method-{k}", clients=100, evaluations=50, network=k < 2)
    with opened(browser, page.write([tmp_path / "runs"], tmp_path / "a.html")) as tab:
        assert painted(tab) < 2000
        assert len(source(tab, "lines")["name"]) == 14
        assert len(source(tab, "clients")["id"]) == 100
        tab.locator("#method").select_option("method-1")
        assert len(source(tab, "taus")["xs"]) == 2


def test_names_are_text_in_the_browser(browser: Any, tmp_path: Path) -> None:
    names = ["<img src=x onerror=alert(1)>", "\"'</script><script>alert(2)</script>", "x" * 10_000]
    for k, name in enumerate(names):
        write_run(tmp_path / "runs" / str(k), name, clients=3, network=False)
    with opened(browser, page.write([tmp_path / "runs"], tmp_path / "a.html"), width=380) as tab:
        assert tab.locator("#chips button").all_inner_texts()[0] == names[0]
        assert tab.locator("img").count() == 0
        assert tab.evaluate("document.documentElement.scrollWidth") <= 380


def test_a_client_that_was_away_stands_at_its_last_value(browser: Any, tmp_path: Path) -> None:
    """Client 1 was away at the best evaluation, 2 at the second, 5 always."""
    away = {2: [5], 4: [2, 5], 6: [1, 5]}
    path = write_run(tmp_path / "run", away=away)
    rows = (path / "clients.csv").read_text().splitlines()
    (path / "clients.csv").write_text("\n".join([rows[0] + ",newcomer", *(f"{r},0" for r in rows[1:])]) + "\n")
    with np.load(path / "history" / "round-0000004.npz") as arrays:
        value = 100 * float(arrays["adapted"][1])
    with opened(browser, page.write([path], tmp_path / "a.html")) as tab:
        shown = source(tab, "clients")
        assert (shown["id"], [k for k, c in enumerate(shown["fill"]) if c == "#00000000"]) == (list(range(8)), [1, 5])
        assert shown["acc"][1] == pytest.approx(value, abs=0.01)
        assert shown["acc"][5] != shown["acc"][5], "no number"
        said = tab.locator("#away")
        assert (
            said.inner_text()
            == "Hollow: 1 client not tested here, as last tested. Without a dot: 1 client not tested yet."
        )
        row = tab.locator("#clients tr[data-id='1']")
        assert row.locator("td.since").inner_text() == "4"
        row.click()
        assert f"{value:.1f}% adapted, in round 4" in tab.locator("#card").inner_text()
        tab.locator("#clear").click()
        tab.locator("#clients tr[data-id='5']").click()
        assert "not tested yet" in tab.locator("#card").inner_text()
        assert tab.locator("#clients tr[data-id='5'] td").all_inner_texts()[5:7] == ["–", "–"]
        assert "8 of 8 clients" in tab.locator("#shown").inner_text()
        tab.locator("#evaluation").fill("1")
        assert [k for k, c in enumerate(source(tab, "clients")["fill"]) if c == "#00000000"] == [2, 5]
        assert tab.locator("#clients tr[data-id='2'] td.since").inner_text() == "2"
        tab.locator("#evaluation").fill("0")
        assert said.inner_text() == "Without a dot: 1 client not tested yet."


def test_names_of_nodes_are_text_too(browser: Any, tmp_path: Path) -> None:
    """In the card, the tables, and the box beside the pointer."""
    names = ["<img src=x onerror=alert(1)>", "\"'</script><script>alert(2)</script>", "x" * 10_000, "007"]
    events = {2: {"missing": [0]}, 3: {"missing": [1], "rejected": [{"client": 2, "reason": "<b>"}]}}
    write_run(tmp_path / "run", clients=4, names=names, events=events)
    file = page.write([tmp_path / "run"], tmp_path / "a.html")
    assert file.stat().st_size < 1e6
    with opened(browser, file, width=380) as tab:
        tab.get_by_role("button", name="client", exact=True).click()
        assert tab.locator("#clients td.name").all_text_contents() == names
        for k, name in enumerate(names):
            tab.locator("#clients tbody tr").nth(k).click()
            assert tab.locator("#card dd").first.text_content() == name
            tab.locator("#clear").click()
        tab.locator("#s-timeline summary").click()
        tab.locator("#s-timeline table").wait_for()
        shown = [row.split("\t")[:2] for row in tab.locator("#s-timeline tr").all_inner_texts()]
        told = [["3", "2 " + "x" * 39 + "…"], ["2", f"0 {names[0]}"], ["3", f"1 {names[1]}"]]
        assert shown == [["round", "client"], *told]
        tab.locator("#s-heat summary").click()
        tab.locator("#s-heat table").wait_for()
        assert f"0 {names[0]}" in tab.locator("#s-heat table").inner_text()
        tab.locator("#s-timeline .bk-Figure").scroll_into_view_if_needed()
        tab.mouse.move(*tab.evaluate(PLACE, ["timeline", 0, "x", "y", "events", "y"]))
        tab.locator(".bk-Tooltip").get_by_text(f"0 {names[0]}").wait_for()
        tab.locator("#copy").click()
        tab.wait_for_function("pa3dfl.copied")
        rows = list(csv.reader(tab.evaluate("pa3dfl.copied").splitlines()))
        assert sorted(row[1] for row in rows) == sorted(["name", *names])
        tab.get_by_role("button", name="name", exact=True).click()
        assert tab.locator("#clients td.name").all_text_contents() == [names[k] for k in (1, 0, 3, 2)]
        assert tab.locator("img").count() == 0
        assert tab.evaluate("document.documentElement.scrollWidth") <= 380


@pytest.mark.parametrize(
    "run", [{"finished": False}, {"ideal": True}, {"clients": 1}, {"history": False}, {"clients": 100_000}],
    ids=lambda run: next(iter(run)),
)  # fmt: skip
def test_other_runs_open_too(browser: Any, tmp_path: Path, run: dict[str, Any]) -> None:
    file = page.write([write_run(tmp_path / "a", evaluations=2, **run)], tmp_path / "a.html")
    with opened(browser, file) as tab:
        n = min(run.get("clients", 8), 400)
        assert len(source(tab, "clients")["id"]) == n
        assert f"{n} of {n} client" in tab.locator("#shown").inner_text()
        if run.get("clients") == 100_000:
            assert painted(tab) < 2000
            assert "a sample of 100,000" in tab.locator("#shown").inner_text()
        if not run.get("finished", True):
            assert "Not finished" in tab.locator("header").inner_text()


def test_newcomers_stand_beside_those_who_were_trained_in(browser: Any, tmp_path: Path) -> None:
    plain, path = write_run(tmp_path / "a", "fedavg"), write_run(tmp_path / "b", "pa3dfl")
    rows = [f"{i},pa3dfl,1.0,1,{k},{rule},0.5,{0.4 + k / 10 + i / 100},1.0" for i in (8, 10) for k in (0, 2)
            for rule in ("received", "adapted")]  # fmt: skip
    head = "client,method,r,width,k,rule,val_accuracy,test_accuracy,alpha"
    (path / "newcomers.csv").write_text("\n".join([head, *rows]) + "\n")
    facts = {"best_round": 6, "rules": {"adapted": {"test_accuracy": 0.75}}}
    (path / "summary.json").write_text(json.dumps(facts))
    with opened(browser, page.write([plain, path], tmp_path / "a.html")) as tab:
        tab.locator("#method").select_option("Pa3dFL")
        shown = [row.split("\t") for row in tab.locator("#newcomers tr").all_inner_texts()]
        assert shown == [["tested", "newcomers", "on arrival", "after 2 rounds", "trained in"],
                         ["received", "2", "49.0", "69.0", "–"], ["adapted", "2", "49.0", "69.0", "75.0"]]  # fmt: skip
        tab.locator("#method").select_option("FedAvg")
        assert not tab.locator("#s-newcomers").is_visible()


def test_a_running_page_says_its_age_and_reloads(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pa3dfl.runs.page.html.RELOAD_SECONDS", 4)
    file = page.write([write_run(tmp_path / "a", finished=False)], tmp_path / "a.html", running=True)
    with opened(browser, file) as tab:
        assert "this page reloads itself" in tab.locator("#age").inner_text()
        tab.evaluate("document.title = 'old'")
        tab.wait_for_function("document.title !== 'old' && window.pa3dfl?.ready", timeout=60_000)


def test_a_run_that_was_trained(browser: Any, tmp_path: Path) -> None:
    arrays = make_arrays(240)
    np.savez(tmp_path / "tiny.npz", x=arrays.x, y=arrays.y)
    given: dict[str, Any] = {
        "model": "cnn-fashion",
        "batch": 10,
        "clients": 6,
        "per_round": 3,
        "rounds": 2,
        "epochs": 1,
    }
    given |= {"eval_every": 1, "threads": 1, "hidden": 8, "device": "cpu"}
    api.run(data=str(tmp_path / "tiny.npz"), out=str(tmp_path / "run"), **given)
    with opened(browser, page.write([tmp_path / "run"], tmp_path / "a.html")) as tab:
        assert source(tab, "clients")["id"] == list(range(6))
        assert len(source(tab, "taus")["xs"]) == tab.locator("#layer option").count() >= 3
        assert "multiply-adds" in tab.locator("header").inner_text()
