import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from pa3dfl.core.errors import UserError
from pa3dfl.runs import capacity_picture, comparison, find_runs, learning_curve, partition_picture, read_run, render

HEADER = "client,r,width,n_train,n_val,n_test,val_accuracy,test_accuracy,alpha"
# Ten clients, the first out of order; by capacity: .5 .6 | .7 .7 | .75 .85 | .9 .8 | .9 1, worst tenth .5.
CAPACITY = [0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0]
ACCURACY = [0.9, 0.5, 0.6, 0.7, 0.7, 0.75, 0.85, 0.9, 0.8, 1.0]


def write_run(path: Path, capacity: Any = CAPACITY, accuracy: Any = ACCURACY, **said: Any) -> Path:
    finished = said.pop("finished", True)
    path.mkdir(parents=True)
    asked = {"method": "pa3dfl", "data": "fashion", "setting": "hetero", "seed": 1, "rounds": 4} | said
    (path / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in asked.items()))
    rounds = [{"round": n, "bytes_down": 100 * n, "bytes_up": 50, "seconds": 1.5} for n in (1, 2, 3, 4)]
    rounds[1] |= {"val_accuracy": 0.80, "test_accuracy": 0.77, "worst_decile_accuracy": 0.4}
    rounds[3] |= {"val_accuracy": 0.79, "test_accuracy": 0.78, "worst_decile_accuracy": 0.3}
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rounds))
    clients = enumerate(zip(capacity, accuracy, strict=True))
    rows = [f"{i},{r},3/16,80,10,10,{a},{a}," for i, (r, a) in clients]
    (path / "clients.csv").write_text("\n".join([HEADER, *rows]))
    if finished:
        found = {"best_round": 2, "test_accuracy": 0.77, "val_accuracy": 0.8, "worst_decile_accuracy": 0.5}
        (path / "summary.json").write_text(json.dumps({"seconds": 3723.4, **found, **asked}))
    return path


def table_of(runs: Any, width: int = 120, styled: bool = False) -> str:
    out = io.StringIO()
    style: Any = {"force_terminal": styled, "color_system": "standard" if styled else None}
    render(comparison(runs), Console(file=out, width=width, **style))
    return out.getvalue()


def test_a_run_read_back_and_compared_by_hand(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a"))
    assert (run.name, run.finished, len(run.rounds), len(run.clients)) == ("pa3dfl", True, 4, 10)
    assert list(run.clients[0].values()) == [0, 0.9, "3/16", 80, 10, 10, 0.9, 0.9, ""]
    (record,) = comparison([run])
    json.dumps(record, allow_nan=False)
    assert record.pop("by_capacity") == pytest.approx([0.55, 0.70, 0.80, 0.85, 0.95])
    assert record.pop("capacities") == [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8], [0.9, 1.0]]
    assert record == {
        "name": "pa3dfl", "method": "pa3dfl", "data": "fashion", "setting": "hetero", "seed": 1, "rounds": 4,
        "best_round": 2, "test_accuracy": 0.77, "worst_decile_accuracy": 0.5, "val_accuracy": 0.8,
        "tested": None, "rules": {}, "bytes_up": 50.0, "bytes_down": 250.0,
        "seconds": 3723.4, "path": str(tmp_path / "a"), "finished": True,
    }  # fmt: skip


def test_ties_and_a_remainder_split_by_capacity_then_id(tmp_path: Path) -> None:
    # Eleven clients: the first fifth takes three. The worst tenth is ceil(1.1) = 2 clients: .1 and .3.
    accuracy = [0.9, 0.1, 0.5, 0.3, 0.6, 0.8, 0.4, 0.6, 0.7, 0.9, 1.0]
    path = write_run(tmp_path / "a", [0.5, 0.6, 0.7, 0.8, 0.9, 0.9] + [0.25] * 5, accuracy)
    (record,) = comparison([read_run(path)])
    # Ids 6 7 8 | 9 10 | 0 1 | 2 3 | 4 5.
    assert record["by_capacity"] == pytest.approx([(0.4 + 0.6 + 0.7) / 3, 0.95, 0.5, 0.4, 0.7])
    assert record["worst_decile_accuracy"] == pytest.approx(0.2)


def test_a_client_without_test_data_is_left_out_of_the_means(tmp_path: Path) -> None:
    accuracy = [0.9, "", "nan", 0.7, 0.7, 0.75, 0.85, 0.9, "", 1.0]
    (record,) = comparison([read_run(write_run(tmp_path / "a", accuracy=accuracy))])
    assert record["by_capacity"] == [None, *map(pytest.approx, [0.7, 0.8, 0.9, 0.95])]
    assert record["worst_decile_accuracy"] == pytest.approx(0.7)


def test_an_unfinished_run_says_what_its_clients_and_rounds_can(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", accuracy=[0.5] * 10, finished=False)
    assert comparison([read_run(path)])[0]["test_accuracy"] == 0.5
    (path / "clients.csv").unlink()
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "train_lo')  # killed in the middle of a line
    run = read_run(path)
    assert (run.name, run.finished, run.clients) == ("pa3dfl (unfinished)", False, [])
    (record,) = comparison([run])
    assert (record["method"], record["data"], record["seed"], record["rounds"]) == ("pa3dfl", "fashion", 1, 4)
    assert (record["best_round"], record["test_accuracy"], record["seconds"]) == (2, 0.77, 6.0)
    assert (record["worst_decile_accuracy"], record["by_capacity"]) == (0.4, [])


def test_a_run_that_has_just_begun_is_a_row_of_dashes_and_no_curve(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", finished=False)
    (path / "clients.csv").unlink()
    (path / "rounds.jsonl").write_text("")
    run = read_run(path)
    assert table_of([run]).splitlines()[-2].split() == ["pa3dfl", "(unfinished)", "–", "–", "–", "0:00:00"]
    assert capacity_picture([run], tmp_path / "c") is None
    with pytest.raises(UserError, match="none of these runs has an evaluated round"):
        learning_curve([run], tmp_path / "c")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("summary.json", '{"method": ', "summary.json is not valid JSON"),
        ("summary.json", "[]", "summary.json should hold a JSON object, not list"),
        ("rounds.jsonl", '{"round": 1\n{"round": 2}\n', "rounds.jsonl, line 1, is not valid JSON"),
        ("rounds.jsonl", '{"round": 1}\n{"step": 2}\n', "rounds.jsonl, line 2, has no round number"),
        ("clients.csv", "client,width,n_train\n", "lacks the column.s. r, n_val, n_test, val_accuracy"),
        ("clients.csv", "", "lacks the column.s. client, r"),
        ("clients.csv", f"{HEADER}\n0,high,1,1,1,1,1,1,\n", "line 2, is not a client's row .*'high'"),
        ("clients.csv", f"{HEADER}\n0,0.5\n", "line 2, is not a client's row"),
    ],
)
def test_a_broken_file_is_named_in_one_line(tmp_path: Path, file: str, text: str, message: str) -> None:
    path = write_run(tmp_path / "a")
    (path / file).write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_run(path)
    assert "\n" not in str(caught.value)


def test_folders_that_are_no_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=r"not a run directory: it has no rounds\.jsonl"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="no run directories in"):
        find_runs([tmp_path])
    for read in (read_run, lambda path: find_runs([path])):
        with pytest.raises(UserError, match="is not a folder"):
            read(tmp_path / "nowhere")


def test_runs_are_found_once_and_labelled_by_the_options_that_differ(tmp_path: Path) -> None:
    for name, seed in [("a", 1), ("b", 2), ("c", 2)]:
        write_run(tmp_path / "runs" / name, seed=seed)
    write_run(tmp_path / "d", method="fedavg", seed=2)
    runs = find_runs([tmp_path / "runs", tmp_path / "d", tmp_path / "runs/a"])
    names = ["pa3dfl, seed 1", "pa3dfl, seed 2, b", "pa3dfl, seed 2, c", "fedavg, seed 2"]
    assert [run.name for run in runs] == names
    assert "Note: these runs differ in seed (1, 2)." in table_of(runs)


def test_the_table_shows_percent_and_bolds_the_best(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    halved = [*(a / 2 for a in ACCURACY[:-1]), 1.0]
    write_run(tmp_path / "b", accuracy=halved, method="fedavg", test_accuracy=0.6)
    text = table_of(find_runs([tmp_path]), width=80)
    assert text.startswith("fashion · hetero · seed 1")
    assert "≤ 20%  ≤ 40%  ≤ 60%  ≤ 80%  ≤ 100%" in text
    rows = [line.split() for line in text.splitlines() if ":" in line]
    assert rows == [
        ["pa3dfl", "77.0", "50.0", "55.0", "70.0", "80.0", "85.0", "95.0", "2", "1:02:03"],
        ["fedavg", "60.0", "25.0", "27.5", "35.0", "40.0", "42.5", "72.5", "2", "1:02:03"],
    ]
    assert "Note" not in text
    styled = table_of(find_runs([tmp_path]), styled=True)
    assert ("\x1b[1m77.0" in styled, "\x1b[1m60.0" in styled) == (True, False)


def test_levels_of_capacity_are_the_columns(tmp_path: Path) -> None:
    """Three levels, three columns; beside a run with fifths they are parts."""
    levels = [1.0, 0.25, 0.0625, 1.0, 0.25, 0.0625, 1.0, 0.25, 0.0625, 1.0]
    path = write_run(tmp_path / "a", capacity=levels, setting="levels:1,1/4,1/16")
    (record,) = comparison([read_run(path)])
    assert record["capacities"] == [[0.0625, 0.0625], [0.25, 0.25], [1.0, 1.0]]
    assert record["by_capacity"] == pytest.approx([2.35 / 3, 2.1 / 3, 3.5 / 4], abs=0.1)
    by_hand = [[a for a, r in zip(ACCURACY, levels, strict=True) if r == level] for level in (0.0625, 0.25, 1.0)]
    assert record["by_capacity"] == pytest.approx([sum(each) / len(each) for each in by_hand])
    text = table_of([read_run(path)])
    assert "= 6.2%  = 25%  = 100%" in text
    assert capacity_picture([read_run(path)], tmp_path / "c.png") is not None
    write_run(tmp_path / "b", method="fedavg", setting="levels:1,1/4,1/16")
    rows = [line.split() for line in table_of(find_runs([tmp_path])).splitlines() if ":" in line and "." in line]
    assert [len(row) for row in rows if row[0] in ("pa3dfl", "fedavg")] == [10, 10]


def test_every_measured_rule_has_a_column(tmp_path: Path) -> None:
    def rules(**by_rule: float) -> dict[str, Any]:
        return {rule: {"test_accuracy": accuracy} for rule, accuracy in by_rule.items()}

    write_run(tmp_path / "a", tested="adapted", rules=rules(adapted=0.77, received=0.6, kept=0.7), capacity=[1.0] * 10)
    write_run(tmp_path / "b", tested="adapted", method="fedavg", rules=rules(adapted=0.7, received=0.65),
              capacity=[1.0] * 10)  # fmt: skip
    lines = table_of(find_runs([tmp_path])).splitlines()
    assert lines[0].strip().endswith("tested adapted")
    assert [line.split()[1:5] for line in lines if "1:02:03" in line] == [
        ["77.0", "50.0", "60.0", "70.0"], ["77.0", "50.0", "65.0", "–"],
    ]  # fmt: skip
    write_run(tmp_path / "c", tested="received", method="ditto", rules=rules(received=0.5), capacity=[1.0] * 10)
    text = table_of(find_runs([tmp_path]))
    assert "adapted  received  kept" in " ".join(text.split()).replace(" ", "  ")
    assert "differ in tested (adapted, received)" in " ".join(text.split())


def test_equal_capacities_have_no_fifths_and_no_picture(tmp_path: Path) -> None:
    ideal = read_run(write_run(tmp_path / "a", setting="ideal", capacity=[1.0] * 10))
    assert comparison([ideal])[0]["by_capacity"] == []
    assert table_of([ideal]).splitlines()[-2].split() == ["pa3dfl", "77.0", "50.0", "2", "1:02:03"]
    assert capacity_picture([ideal], tmp_path / "capacity.png") is None
    assert not (tmp_path / "capacity.png").exists()
    write_run(tmp_path / "b", [r / 2 for r in CAPACITY])
    write_run(tmp_path / "c")
    assert "part 1: the clients with the least capacity r" in table_of(find_runs([tmp_path]))


def test_pictures_are_written_as_png_and_svg_and_do_not_change(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a")
    write_run(tmp_path / "runs/b", method="fedavg", finished=False)
    runs = find_runs([tmp_path / "runs"])
    curve = learning_curve(runs, tmp_path / "out" / "lr0.1")
    assert curve == tmp_path / "out" / "lr0.1.png"
    assert capacity_picture(runs, tmp_path / "capacity.png") == tmp_path / "capacity.png"
    for png in (curve, tmp_path / "capacity.png"):
        assert imread(png)[..., :3].std() > 0.05  # something is drawn
    svg = tmp_path / "out" / "lr0.1.svg"
    first = svg.read_bytes()
    assert (learning_curve(runs, svg), svg.read_bytes()) == (curve, first)


def test_partition_bars_are_as_long_as_the_data(tmp_path: Path) -> None:
    png = partition_picture(np.array([[30, 0], [0, 60]]), tmp_path / "p.png", "two clients")
    pixels = imread(png)[:, :1170, :3]  # left of the colour bar
    colours = np.array([[51, 34, 136], [136, 204, 238]]) / 255
    indigo, cyan = (np.isclose(pixels, rgb, atol=0.01).all(-1).sum() for rgb in colours)
    assert cyan / indigo == pytest.approx(2, rel=0.02)


def test_partition_takes_hundreds_of_clients_and_labels(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).poisson(0.3, (300, 100))
    assert partition_picture(counts, tmp_path / "p.png", "many").stat().st_size > 10_000
    assert (tmp_path / "p.svg").stat().st_size < 1_000_000
    with pytest.raises(UserError, match="not all 0"):
        partition_picture(counts * 0, tmp_path / "p.png", "nothing")
