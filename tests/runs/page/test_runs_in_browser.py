"""Pages of many kinds of runs in a real browser: seeds, names, absences, newcomers, unfinished and trained runs."""

import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import write_run

from browser import PLACE, chromium, opened, painted, source
from conftest import write_data
from pa3dfl.experiments import api
from pa3dfl.runs import page

pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")
pytest.importorskip("playwright", reason="playwright is not installed: pages are not tested in a browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium here: pages are not tested in a browser"),
]


def test_seeds_have_a_band_and_are_chosen(browser: Any, tmp_path: Path) -> None:
    """For a method whose hyper-network has no temperatures, too."""
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


def test_an_absent_client_keeps_its_last_value(browser: Any, tmp_path: Path) -> None:
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
    """Names are text in the card, the tables, and the box beside the pointer."""
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
def test_unfinished_small_and_big_runs_open(browser: Any, tmp_path: Path, run: dict[str, Any]) -> None:
    file = page.write([write_run(tmp_path / "a", evaluations=2, **run)], tmp_path / "a.html")
    with opened(browser, file) as tab:
        n = min(run.get("clients", 8), 400)
        assert len(source(tab, "clients")["id"]) == n
        assert f"{n} of {n} client" in tab.locator("#shown").inner_text()
        if run.get("clients") == 100_000:
            assert painted(tab) < 2000
            assert "a sample of 100,000" in tab.locator("#shown").inner_text()
        if n == 1:  # nobody to compare with
            assert tab.locator("#card-id").inner_text() == "0"
            assert not any(tab.locator(f"#s-{name}").is_visible() for name in ("map", "heat"))
        if not run.get("finished", True):
            assert "Not finished" in tab.locator("header").inner_text()


def test_newcomers_are_compared_with_the_other_clients(browser: Any, tmp_path: Path) -> None:
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


def test_a_renewed_page_keeps_the_place_of_its_reader(browser: Any, tmp_path: Path) -> None:
    """The slider at its end stays there, opened tables stay open; another page in the tab has a state of its own."""
    run, file = write_run(tmp_path / "a", finished=False), tmp_path / "a.html"
    with opened(browser, page.write([run], file, running=True)) as tab:
        tab.locator("#evaluation").fill("0")
        tab.locator("#evaluation").fill("3")
        tab.locator("#rule").select_option("received")
        tab.locator("#layer").select_option("1")
        tab.locator("#s-map summary").click()
        tab.locator("#table-map table").wait_for()
        tab.evaluate("scrollTo(0, 700)")
        page.write([write_run(tmp_path / "b", evaluations=4, finished=False)], file, running=True)
        tab.reload()
        tab.wait_for_function("window.pa3dfl?.ready")
        assert tab.locator("#evaluation").evaluate("e => [e.value, e.max]") == ["4", "4"]
        tab.locator("#table-map table").wait_for()
        assert tab.evaluate("Math.abs(scrollY - 700)") < 50
        chosen = "['rule', 'layer'].map(id => document.getElementById(id).value)"
        assert tab.evaluate(chosen) == ["received", "1"]
        tab.goto(page.write([run], tmp_path / "other.html").as_uri())
        tab.wait_for_function("window.pa3dfl?.ready")
        assert tab.evaluate(chosen) == ["adapted", "0"]
        assert tab.locator("#table-map table").count() == 0
        tab.evaluate("addEventListener('pagehide', () => sessionStorage.setItem('pa3dfl ' + location.pathname, "
                     "'{\"layer\": 99, \"rule\": \"x\", \"against\": \"x\"}'))")  # fmt: skip
        tab.reload()
        tab.wait_for_function("window.pa3dfl?.ready")
        assert tab.evaluate(chosen) == ["adapted", "0"]
        assert tab.locator("#against").input_value() == "round"


def test_an_old_page_of_a_run_does_not_claim_that_it_goes_on(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr("pa3dfl.runs.page.html.time.time", lambda: now - 7200)
    file = page.write([write_run(tmp_path / "a", finished=False)], tmp_path / "a.html", running=True)
    with opened(browser, file) as tab:
        assert "It may have been stopped since" in tab.locator("#age").inner_text()


def test_the_page_of_a_trained_run(browser: Any, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "model": "cnn-fashion", "batch": 10, "clients": 6, "per_round": 3, "rounds": 2, "epochs": 1, "eval_every": 1,
        "threads": 1, "hidden": 8, "device": "cpu",
    }  # fmt: skip
    api.run(data=write_data(tmp_path), out=str(tmp_path / "run"), **given)
    with opened(browser, page.write([tmp_path / "run"], tmp_path / "a.html")) as tab:
        assert source(tab, "clients")["id"] == list(range(6))
        assert len(source(tab, "taus")["xs"]) == tab.locator("#layer option").count() >= 3
        assert "multiply-adds" in tab.locator("header").inner_text()
