"""What a page says, without a browser: the numbers in it, its size, and what stops it or does not."""

import base64
import dataclasses
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from synthetic import write_run

from pa3dfl import cli
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.options.config import Config
from pa3dfl.runs import page
from pa3dfl.runs.page.content import content, find, grouped
from pa3dfl.runs.page.headline import headline
from pa3dfl.runs.page.html import foot
from pa3dfl.runs.page.network import clustered, cosines, network, packed
from pa3dfl.runs.page.terms import names, terms
from pa3dfl.runs.run import read_run
from pa3dfl.runs.rundata import load

pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")


def data_of(file: Path) -> Any:
    [packed_data] = re.findall(r'unpack\("([^"]+)"\)\);add', file.read_text())[:1]
    return json.loads(zlib.decompress(base64.b64decode(packed_data)))


def said(*paths: Path) -> str:
    runs = find(paths)
    return " ".join(headline(runs, content(runs)["runs"]))


def lower(run: Path, by: Sequence[float]) -> None:
    """Lower the test accuracy of each client."""
    file = run / "clients.csv"
    head, *lines = file.read_text().splitlines()
    rows = [line.split(",") for line in lines]
    for row, less in zip(rows, by, strict=True):
        row[8] = str(round(float(row[8]) - less, 6))
    file.write_text("\n".join([head, *map(",".join, rows)]) + "\n")


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


def test_the_headline_by_hand(tmp_path: Path) -> None:
    a, b = (write_run(tmp_path / m, m, clients=10, network=False) for m in ("good", "weak"))
    lower(b, [0.04, 0.02] * 5)  # 3 ± 1.96·1.054/√10
    told = said(a, b)
    assert "good has a mean test accuracy of" in told
    assert "3.0 points ahead of weak (95% interval 2.3 to 3.7 points) over 10 clients." in told
    assert "12.0 MB sent both ways" in told or "24 MB sent both ways" in told or "12 MB sent both ways" in told
    assert "chance" not in told
    same = write_run(tmp_path / "same", "same", clients=10, network=False)
    assert "the best of 2 methods, level with same over 10 clients." in said(a, same)
    lower(same, [0.1, -0.08] * 5)
    assert "1.0 points ahead of same" in said(a, same)
    assert "chance" in said(a, same)


def test_methods_are_compared_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    """Seed 1 of both is equal; seed 0, which one of them lacks, is easier."""
    zero, one, weak = (
        write_run(tmp_path / f"{m}{s}", m, clients=10, network=False, seed=s)
        for m, s in (("good", 0), ("good", 1), ("weak", 1))
    )
    lower(zero, [-0.1] * 10)
    assert "of 2 methods, level with weak over 10 clients of the one seed that both have." in said(zero, one, weak)
    lower(weak, [-0.01] * 10)
    told = said(zero, one, weak)
    assert told.startswith("good has a mean")
    assert "; weak is 1.0 points ahead (95% interval 1.0 to 1.0 points) over 10 clients of the one seed" in told
    lower(weak, [0.03] * 10)
    other = write_run(tmp_path / "weak0", "weak", clients=10, network=False, seed=0)
    lower(other, [-0.05] * 10)
    assert "3.5 points ahead of weak" in (told := said(zero, one, weak, other))
    assert "over 10 clients and 2 seeds." in told
    third = write_run(tmp_path / "weak2", "weak", clients=10, network=False, seed=2)
    assert said(zero, third).count("follows with") == 1


def test_unfinished_not_yet_tested_and_without_capacities(tmp_path: Path) -> None:
    begun = write_run(tmp_path / "begun", finished=False, history=False)
    (begun / "clients.csv").unlink()
    (begun / "rounds.jsonl").write_text("")
    assert said(begun).startswith("No client has been tested yet")
    page.write([begun], tmp_path / "a.html", running=True)
    assert data_of(tmp_path / "a.html")["running"] is True
    assert "Not finished: Pa3dFL (round 6 of 6)." in said(write_run(tmp_path / "stopped", finished=False))


def with_options(path: Path, **given: Any) -> Path:
    config = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump(config | given))
    return path


def test_runs_with_other_options_are_rows_of_their_own(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / k, "fedavg", network=False) for k in "abcde"]
    given: list[dict[str, Any]] = [{}, {"seed": 1}, {"mu": 0.5}, {"rounds": 9}, {"out": "elsewhere", "threads": 2}]
    for path, options in zip(runs, given, strict=True):
        with_options(path, **{"mu": 1.0} | options)
    shown = content(find(runs))["runs"]
    assert [(r["method"], r["seed"]) for r in shown] == [
        ("FedAvg, rounds 6, mu 1.0", 0), ("FedAvg, rounds 6, mu 1.0", 1), ("FedAvg, rounds 6, mu 0.5", 0),
        ("FedAvg, rounds 9, mu 1.0", 0), ("FedAvg, rounds 6, mu 1.0, repetition 2", 0),
    ]  # fmt: skip
    assert names(find(runs[:2])) == ["FedAvg"] * 2
    ideal = with_options(write_run(tmp_path / "ideal", ideal=True, network=False), lr=0.1, mu=7)
    assert names(find([runs[0], ideal])) == ["FedAvg, hetero", "Pa3dFL, ideal"]


def test_the_foot_says_what_is_equal_and_what_differs(tmp_path: Path) -> None:
    a, b, c = (write_run(tmp_path / m, m, network=False) for m in ("a", "b", "c"))
    with_options(a, mu=1, data_fingerprint="x")
    runs = find([with_options(b, lr=0.1), with_options(c, lr=0.1, rounds=9, data_fingerprint="y"), a])
    equal, *different = terms(runs, names(runs))
    assert equal.startswith("Equal for all: data synthetic, init he, setting hetero,")
    assert "epochs 1, batch 10" in equal
    assert different == [
        "Different rounds: 6 for b and a; 9 for c.",
        "Different lr: 0.1 for b and c; none for a.",
        "Different data fingerprint: none for b; y for c; x for a.",
    ]
    assert "Not on equal terms: the runs differ in rounds, data fingerprint; see the foot" in said(a, b, c)
    assert "equal terms" not in said(b, with_options(a, data_fingerprint="y"))
    assert terms(runs[:1], ["b"]) == []
    text = page.write([a, b, c], tmp_path / "a.html").read_text()
    assert "Different rounds: 6 for a and b; 9 for c." in text
    assert "<title>a, b, c on synthetic</title>" in text


def test_the_foot_of_an_unfinished_run_says_what_made_it(tmp_path: Path) -> None:
    config = Config(method="pa3dfl", rounds=6, options={"hidden": 16})
    fields = dataclasses.asdict(config)
    options = fields.pop("options")
    given = {k: v for k, v in fields.items() if v is not None} | options | {"data_fingerprint": "x"}
    run = with_options(write_run(tmp_path / "a", finished=False), **given)
    file = run / "history" / "about.json"
    old = foot(find([run]), content(find([run]))["runs"])
    assert f"seed 0; hash of the configuration {config.hash()}<" in old  # an earlier version wrote no more
    made = {"version": "0.0.7", "commit": "abc+", "torch": "2.0", "device": "cpu"}
    file.write_text(json.dumps(json.loads(file.read_text()) | made))
    told = foot(find([run]), content(find([run]))["runs"])
    assert f"{config.hash()}; commit abc+; pa3dfl 0.0.7; PyTorch 2.0; device cpu<" in told
    with_options(run, lr=-1)
    assert "hash" not in foot(find([run]), content(find([run]))["runs"])


def test_whom_the_best_method_serves_worst(tmp_path: Path) -> None:
    """By fifths of capacity, by level where there are few, and at equal capacity by accuracy."""
    ten = [0, 0, 0.3, 0.3, 0, 0, 0, 0, 0, 0]
    run = write_run(tmp_path / "a", clients=10, network=False)
    lower(run, [float(row["test_accuracy"]) - 0.9 + low for row, low in zip(load(run).client_rows, ten, strict=True)])
    assert "Of its clients it serves the fifth with capacity 23% to 34% worst: 60.0%." in said(run)
    ideal = write_run(tmp_path / "ideal", clients=10, network=False, ideal=True)
    lower(ideal, [float(r["test_accuracy"]) - 0.9 + low for r, low in zip(load(ideal).client_rows, ten, strict=True)])
    assert "The fifth of its clients with the lowest accuracy has a mean of 60.0%." in said(ideal)
    file = ideal / "clients.csv"
    head, *rows = (line.split(",") for line in file.read_text().splitlines())
    for row, r in zip(rows, [1, 1, 0.0625, 0.0625, *[0.25] * 6], strict=True):
        row[1] = str(r)
    file.write_text("\n".join(map(",".join, [head, *rows])) + "\n")
    assert "Of its clients it serves those with capacity 6.25% worst: 60.0%." in said(ideal)


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


def test_clients_at_their_own_best_evaluations_are_explained(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", "local-only", clients=10, network=False)
    note = "LocalOnly: each client keeps the model of its own best evaluation"
    assert note not in page.write([path], tmp_path / "a.html").read_text()
    text = (path / "clients.csv").read_text().splitlines()
    rows = [line.split(",") for line in text[1:]]
    for row in rows:
        row[8] = row[10] = str(float(row[8]) + 0.01)
    (path / "clients.csv").write_text("\n".join([text[0], *map(",".join, rows)]) + "\n")
    assert note in page.write([path], tmp_path / "a.html").read_text()


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


@pytest.mark.parametrize("groups", range(2, 9))
def test_similar_clients_stand_together(groups: int) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        group = rng.permutation(np.arange(48) % groups)
        encoded = rng.normal(size=(groups, 8))[group] + 0.1 * rng.normal(size=(48, 8))
        found = clustered(cosines(encoded))
        assert sorted(found) == list(range(48))
        assert (np.diff(group[found]) != 0).sum() == groups - 1


def test_the_most_similar_ends_of_clusters_meet() -> None:
    """Directions on a quarter of a circle come back in the order of their angles."""
    angles = np.random.default_rng(0).permutation([0, 1, 2, 10, 11, 12, 40, 41, 90])
    encoded = np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], 1)
    found = angles[clustered(cosines(encoded))].tolist()
    assert found in (sorted(found), sorted(found)[::-1])
    assert clustered(np.full((3, 3), np.nan)) in ([0, 1, 2], [2, 1, 0], [1, 0, 2])
    assert clustered(np.ones((1, 1))) == [0]
    assert base64.b64decode(packed(np.array([[1.0, -1.0], [-1.0, 1.0]]))) == bytes([255, 0, 255])


def test_a_client_that_missed_an_evaluation_has_no_place_on_the_map_there() -> None:
    first = {"client": np.array([0, 1, 2]), "encoded": np.array([[0.0, 0.0], [5.0, 0.0], [2.0, 0.0]])}
    last = {"client": np.array([2, 0]), "encoded": np.array([[4.0, 0.0], [0.0, 0.0]])}
    found = network([(1, first), (2, last)], [0, 1, 2])
    assert found is not None
    (a, b, c), (d, gone, f) = (m["xy"] for m in found["map"])
    assert gone is None
    assert sorted(found["clients"]) == [0, 2]
    assert [abs(v[0]) for v in (a, b, c, d, f)] == [2000, 3000, 0, 2000, 2000]  # the centre of the last is (2, 0)
    assert [m["round"] for m in found["matrices"]] == [1, 2]
    assert network([(2, last)], [1]) is None
    assert network([(2, last)], [2]) is None  # nobody is near


def test_one_number_for_each_client_has_a_map_too() -> None:
    found = network([(1, {"client": np.array([0, 1]), "encoded": np.array([[0.0], [2.0]])})], [0, 1])
    assert found is not None
    assert sorted(found["map"][0]["xy"]) == [[-1000, 0], [1000, 0]]


def test_many_labels_share_ten_colours() -> None:
    assert grouped(np.arange(100)) == [sum(range(10 * k, 10 * k + 10)) for k in range(10)]
    assert grouped(np.array([3, 4])) == [3, 4]


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "history" / "round-0000002.npz").write_text("no archive")
    with pytest.raises(UserError, match=r"round-0000002\.npz cannot be read"):
        page.write([path], tmp_path / "a.html")
