"""What a page says, without a browser: the numbers in it, its size, and what stops it or does not."""

import json
import subprocess
import sys
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import data_of, write_run

from pa3dfl import cli
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.runs import page
from pa3dfl.runs.page.content import grouped
from pa3dfl.runs.run import read_run
from pa3dfl.runs.rundata import load

pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")


def test_a_page_holds_the_numbers_of_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", clients=6, evaluations=2)
    assert cli.main(["page", str(tmp_path), "-o", str(tmp_path / "out.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out.html")
    shown = data_of(tmp_path / "out.html")
    [run] = shown["runs"]
    assert run["curve"]["round"] == [2, 4]
    assert run["curve"]["bytes"] == [4e6, 8e6]
    # Clients 0, 2 and 4 train 80 rows in 8 steps of a million.
    assert run["curve"]["operations"] == [2 * 3 * 8 * 10**6, 4 * 3 * 8 * 10**6]
    assert (run["trained"], run["bytes"][0]) == ([4, 0, 4, 0, 4, 0], 16000)
    with np.load(tmp_path / "a" / "history" / "round-0000002.npz") as arrays:
        assert run["evaluations"][0]["adapted"] == [round(1e4 * float(v)) for v in arrays["adapted"]]
    assert shown["people"][0]["dominant"] == list(range(6))


def test_many_clients_are_sampled_and_the_page_says_that(tmp_path: Path) -> None:
    page.write([write_run(tmp_path / "a", clients=100_000, evaluations=1)], tmp_path / "a.html")
    assert (tmp_path / "a.html").stat().st_size < 2e6
    assert "400 of 100,000 clients are shown" in (tmp_path / "a.html").read_text()
    [run] = data_of(tmp_path / "a.html")["runs"]
    assert (run["everybody"], len(run["trained"])) == (100_000, 400)


def test_left_out_evaluations_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pa3dfl.runs.page.content.CELLS", 20)
    path = write_run(tmp_path / "a", clients=10, evaluations=6)
    about = json.loads((path / "history" / "about.json").read_text())
    (path / "history" / "about.json").write_text(json.dumps(about | {"evaluations_kept": "every 2"}))
    text = page.write([path], tmp_path / "a.html").read_text()
    assert "Pa3dFL: one in 3 of the kept evaluations is shown." in text
    assert "Pa3dFL: the run kept one in 2 of its evaluations." in text
    assert [e["round"] for e in data_of(tmp_path / "a.html")["runs"][0]["evaluations"]] == [6, 12]


@pytest.mark.parametrize(("methods", "clients"), [(14, 100), (1, 100_000)])
def test_a_large_page_is_small_and_quick(methods: int, clients: int, tmp_path: Path) -> None:
    for k in range(methods):
        write_run(tmp_path / "runs" / f"{k}", f"method-{k}", clients=clients, evaluations=50, network=k < 2)
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom pa3dfl.runs import page\n"
        "page.write([Path(sys.argv[1])], Path(sys.argv[2]))\n"
        "print(time.process_time(), 'torch' in sys.modules)\n"
        "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
    )
    call = [sys.executable, "-c", program, str(tmp_path / "runs"), str(tmp_path / "a.html")]
    for _ in range(3):  # other programs share the processor: the quickest of three counts
        seconds, torch, kilobytes = subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()
        if float(seconds) <= 2:
            break
    size = (tmp_path / "a.html").stat().st_size
    print(f"{methods} methods, {clients} clients: {float(seconds):.2f} s, {kilobytes} kB, a page of {size} bytes")
    assert size < 2e6
    assert float(seconds) <= 2
    assert int(kilobytes) < 300_000
    assert torch == "False"


def test_names_are_text(tmp_path: Path) -> None:
    for k, name in enumerate(('<script>alert("a")</script>', "'\"&lt;</textarea>${x}", "x" * 10_000)):
        write_run(tmp_path / "runs" / str(k), name, clients=3)
    text = page.write([tmp_path / "runs"], tmp_path / "a.html").read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert next(r["method"] for r in data_of(tmp_path / "a.html")["runs"]).startswith("<script>")


def test_names_of_nodes_stay_as_they_are(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", clients=3, names=["007", "nan", "a,b"])
    assert [row["name"] for row in load(path).client_rows] == ["007", "nan", "a,b"]
    assert [c["name"] for c in read_run(path).clients] == ["007", "nan", "a,b"]
    assert data_of(page.write([path], tmp_path / "a.html"))["people"][0]["names"] == ["007", "nan", "a,b"]


def test_wrong_calls_get_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                  monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    for path, message in ((tmp_path / "no", "is not a folder"), (tmp_path, "no run directories in")):
        assert cli.main(["page", str(path)]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda _: None)
    assert cli.main(["page", str(write_run(tmp_path / "a"))]) == 2
    assert capsys.readouterr().err == "pa3dfl: the page needs Bokeh: pip install 'pa3dfl[page]'\n"


def test_a_page_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (write_run(tmp_path / m, m, clients=3, network=False) for m in ("<a>", "b"))
    shown = load(a).page(b, height=500)._repr_html_()
    assert shown.startswith('<iframe title="the page of a run" style="width:100%;height:500px;border:0" srcdoc="')
    assert shown.count("<") == 2  # the frame alone: the page is its attribute
    assert "<title>&lt;a&gt;, b on synthetic</title>" in unescape(shown)
    assert repr(load(a).page(height=500)) == "Embedded(height=500)"  # a notebook keeps this text, too
    own = load(a)._repr_html_()
    assert own is not None
    assert "<title>&lt;a&gt; on synthetic</title>" in unescape(own)
    monkeypatch.setattr("pa3dfl.runs.rundata.find_spec", lambda name: None)
    assert load(a)._repr_html_() is None


def test_a_page_that_fails_costs_one_line_and_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(page, "write", lambda *_, **__: 1 / 0)
    with page.Renewed(tmp_path, lines.append) as renewed:
        renewed.cost = 0
        renewed({"round": 1, "test_accuracy": 0.5})
        renewed({"round": 1, "test_accuracy": 0.5})
    assert lines == ["no page is written, the run goes on: division by zero"]


@pytest.mark.parametrize(
    ("end", "pages"),
    [(None, 1), (Interrupted(3, Path("a")), 1), (UserError("no such data"), 0), (KeyboardInterrupt(), 0)],
)
def test_a_page_is_written_at_every_end_but_that_of_what_never_began(
    end: BaseException | None, pages: int, tmp_path: Path
) -> None:
    """Without an evaluation before it: newcomers join after the last round."""
    write_run(tmp_path / "a")
    with suppress(BaseException), page.Renewed(tmp_path, print):
        if end:
            raise end
    assert len(list(tmp_path.glob("*.html"))) == pages


def test_renewing_takes_a_hundredth_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = [0.0], []

    def write(paths: Any, out: Path, running: bool) -> None:
        now[0] += 2
        written.append((now[0], running))

    monkeypatch.setattr(page, "write", write)
    monkeypatch.setattr(page.time, "monotonic", lambda: now[0])
    with page.Renewed(tmp_path, print) as renewed:
        for rnd in range(1, 101):
            now[0] += 10
            renewed({"round": rnd} | ({"test_accuracy": 0.5} if rnd % 2 == 0 else {}))
    # The first page comes with the first evaluation, and each further one 400 seconds after the last.
    assert written == [(22, True), (424, True), (826, True), (1008, False)]
    assert 2 * len(written) / now[0] < 0.01


def test_many_labels_share_ten_colours() -> None:
    assert grouped(np.arange(100)) == [sum(range(10 * k, 10 * k + 10)) for k in range(10)]
    assert grouped(np.array([3, 4])) == [3, 4]


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "history" / "round-0000002.npz").write_text("no archive")
    with pytest.raises(UserError, match=r"round-0000002\.npz cannot be read"):
        page.write([path], tmp_path / "a.html")
