"""Predictions for files of the formats that a run reads: further rows become the numbers that training rows became."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pa3dfl import cli
from pa3dfl.core.errors import UserError
from pa3dfl.data import UNKNOWN, load_rows
from pa3dfl.data.arrays import Columns
from pa3dfl.data.sources import load
from pa3dfl.experiments import api
from pa3dfl.experiments.export import export

TINY = {
    "method": "fedavg", "rounds": 1, "per_round": 2, "epochs": 1, "batch": 10, "threads": 1, "device": "cpu",
    "setting": "levels:1/16",
}  # fmt: skip
HEADER = ["who", "age", "job", "drinks"]
PEOPLE = [
    ["ann" if i % 2 else "bob", str(i % 17), ("cook", "clerk", "pilot")[i % 3], "tea" if i % 4 else "milk"]
    for i in range(40)
]


def csv(path: Path, rows: list[list[str]], header: list[str] = HEADER) -> Path:
    """Some columns of the people, in the order of the header."""
    at = [HEADER.index(name) for name in header]
    path.write_text("\n".join(",".join(row) for row in [header, *[[r[i] for i in at] for r in rows]]))
    return path


def exported(data: Path, out: Path, **given: Any) -> Path:
    api.run(**TINY, data=str(data), out=str(out), **given)
    [record] = export(out, [0])
    return Path(record["path"])


def predicted(model: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    said = model.parent / "said.npz"
    assert cli.main(["predict", str(model), str(rows), "--json", "--out", str(said)]) == 0
    facts = dict(json.loads(capsys.readouterr().out))
    with np.load(said) as held:
        assert [held["names"][i] for i in held["label"]] == [str(v) for v in facts["labels"]]
        return facts | {"probability": held["probability"]}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    columns = {"label_column": "drinks", "client_column": "who"}
    return exported(csv(folder / "people.csv", PEOPLE), folder / "run", **columns)


def test_rows_of_a_table_become_what_they_were_in_training(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three of the rows alone have other means and fewer categories; columns may come in another order."""
    whole = predicted(table, csv(tmp_path / "all.csv", PEOPLE), capsys)
    assert set(whole["labels"]) <= {"tea", "milk"}
    right = [said == row[3] for said, row in zip(whole["labels"], PEOPLE, strict=True)]
    assert whole["accuracy"] == np.mean(right)
    few = [PEOPLE[i] for i in (30, 3, 6)]
    some = predicted(table, csv(tmp_path / "some.csv", few, ["job", "drinks", "age"]), capsys)
    np.testing.assert_allclose(some["probability"], whole["probability"][[30, 3, 6]], atol=1e-6)
    without = predicted(table, csv(tmp_path / "without.csv", few, ["age", "job"]), capsys)
    assert without["labels"] == some["labels"]
    assert without["accuracy"] is None
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"age": [30 % 17, 3], "job": ["cook", "cook"]}), tmp_path / "some.parquet")
    np.testing.assert_allclose(
        predicted(table, tmp_path / "some.parquet", capsys)["probability"], whole["probability"][[30, 3]], atol=1e-6
    )
    assert cli.main(["predict", str(table), str(tmp_path / "without.csv")]) == 0
    assert capsys.readouterr().out == f"3 rows\n{' '.join(some['labels'])}\n"


def test_numbers_stay_what_they_are(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A .npz holds inputs of the network: those that the reader makes of the table."""
    x = load(str(csv(tmp_path / "t.csv", PEOPLE)), columns=Columns("who", "drinks")).x
    np.savez(tmp_path / "x.npz", x=x)
    np.testing.assert_array_equal(
        predicted(table, tmp_path / "x.npz", capsys)["probability"],
        predicted(table, tmp_path / "t.csv", capsys)["probability"],
    )


@pytest.mark.parametrize(
    ("rows", "header", "reason"),
    [
        ([["ann", "1", "smith", "tea"]], HEADER, "'job' has 'smith', which the model does not know: expected clerk, c"),
        ([["ann", "1", "cook", "beer"]], HEADER, "has the label 'beer', which the model does not know: expected milk,"),
        ([["ann", "old", "cook", "tea"]], HEADER, "the column 'age' holds words: the model was trained on numbers"),
        ([["ann", "", "cook", "tea"], *PEOPLE], HEADER, "the column 'age' has no value in row 1"),
        (PEOPLE, ["job", "drinks"], "has no column 'age'"),
        ([], HEADER, "is empty"),
    ],
)
def test_rows_that_a_model_cannot_take(
    rows: list[list[str]], header: list[str], reason: str, table: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert cli.main(["predict", str(table), str(csv(tmp_path / "rows.csv", rows, header))]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


def test_a_file_of_another_kind(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("some words")
    for rows, reason in ((tmp_path, "expected a .csv or .parquet"), (tmp_path / "none.csv", "there is no file")):
        assert cli.main(["predict", str(table), str(rows)]) == 2
        assert reason in capsys.readouterr().err
    card = table.parent / "model.json"
    shutil.copytree(table.parent, tmp_path / "copy")
    facts = json.loads(card.read_text())
    del facts["coding"]  # the model of a node, or of an earlier version
    (tmp_path / "copy" / "model.json").write_text(json.dumps(facts))
    assert cli.main(["predict", str(tmp_path / "copy"), str(csv(tmp_path / "t.csv", PEOPLE))]) == 2
    assert "is not what this model was trained on: expected a .npz with x" in capsys.readouterr().err


def test_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("al", "to be or not"), ("bo", "not to\nbe")):
        (tmp_path / "texts" / f"{name}.txt").parent.mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{name}.txt").write_text(text * 3)
    model = exported(tmp_path / "texts", tmp_path / "run", model="lstm-text")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "cy.txt").write_text("bebe")
    facts = predicted(model, tmp_path / "new", capsys)
    assert facts["rows"] == 3
    assert set(facts["labels"]) <= set("to be or not\n") | {""}
    coding = json.loads((model.parent / "model.json").read_text())["coding"]
    arrays = load_rows(tmp_path / "new", coding)
    known = {c: i for i, c in enumerate(sorted(set("to be or not\n")), 1)}
    assert arrays.x[2, :4].tolist() == [known["b"], known["e"], known["b"], 0]
    assert arrays.y.tolist() == [known[c] for c in "ebe"]
    (tmp_path / "new" / "cy.txt").write_text("be?")
    with pytest.raises(UserError, match=r"new cannot be read \(the character '\?', which the model does not know\)"):
        load_rows(tmp_path / "new", coding)
    (tmp_path / "new" / "cy.txt").write_text("be")
    assert load_rows(tmp_path / "new", coding).y.tolist() == [known["e"]]
    (tmp_path / "new" / "cy.txt").write_text("b")
    with pytest.raises(UserError, match="new has no character to predict: expected a text of at least two"):
        load_rows(tmp_path / "new", coding)


def leaf(path: Path, x: list[Any], y: list[Any] | None) -> Path:
    own = {"x": x} if y is None else {"x": x, "y": y}
    path.write_text(json.dumps({"users": ["u"], "user_data": {"u": own}}))
    return path


@pytest.mark.parametrize(
    ("x", "new", "made", "wrong", "reason"),
    [
        (["ab", "b", "abc"] * 4, ["ca"], [[3, 1, 0]], ["a!"], "the character '!', which the model does not know"),
        ([[0, 5, 2], [1, 2]] * 6, [[4]], [[5, 0, 0]], [[1, 2, 3, 4]], "a sequence of 4 entries, and the model takes 3"),
        ([[0, 5, 2], [1, 2]] * 6, [[4]], [[5, 0, 0]], [[0.5]], "an x is not whole, and the model takes tokens"),
        ([[0.5, 1.5], [2, 3]] * 6, [[1, 2]], [[1, 2]], ["ab"], "texts and numbers are not the same to the model"),
        ([[0.5, 1.5], [2, 3]] * 6, [[1, 2]], [[1, 2]], [[0.5]], "the lists of numbers have 1 to 2 entries"),
        ([[0.5] * 784] * 12, [[0.5] * 784], [[[[0.5] * 28] * 28]], [[0.5]], "numbers have 1 to 784 entries"),
        ([[[0.5, 1.5]], [[2]]] * 6, [[[1]]], [[[1, 0]]], [[0.5]], "numbers have 1 to 2 entries"),
    ],
)
def test_leaf_rows(x: list[Any], new: list[Any], made: Any, wrong: list[Any], reason: str, tmp_path: Path) -> None:
    coding = json.loads(json.dumps(load(str(leaf(tmp_path / "a.json", x, ["no", 7] * (len(x) // 2)))).coding))
    arrays = load_rows(leaf(tmp_path / "b.json", new, None), coding)
    assert (arrays.x.tolist(), arrays.y.tolist()) == (made, [UNKNOWN])
    arrays = load_rows(leaf(tmp_path / "b.json", new, ["no"]), coding)
    assert arrays.y.tolist() == [1]  # numbers come before words
    with pytest.raises(UserError) as e:
        load_rows(leaf(tmp_path / "b.json", wrong, None), coding)
    assert reason in str(e.value)
    again = load_rows(tmp_path / "a.json", coding)
    first = load(str(tmp_path / "a.json"))
    np.testing.assert_array_equal(again.x, first.x)
    np.testing.assert_array_equal(again.y, first.y)
    assert again.x.dtype == first.x.dtype


def test_images_by_class_or_all_in_one_folder(tmp_path: Path) -> None:
    def draw(path: Path, value: int, mode: str = "RGB") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (4, 5), (value,) * 3 if mode == "RGB" else value).save(path)

    for i in range(6):
        draw(tmp_path / "all" / ("cat", "dog")[i % 2] / f"{i}.png", i)
    coding = json.loads(json.dumps(load(str(tmp_path / "all")).coding))
    draw(tmp_path / "new" / "b.png", 7, "L")
    draw(tmp_path / "new" / "a.png", 8, "L")
    arrays = load_rows(tmp_path / "new", coding)
    assert arrays.x.shape == (2, 3, 5, 4)
    assert arrays.x[:, 0, 0, 0].tolist() == [8, 7]
    assert arrays.y.tolist() == [UNKNOWN] * 2
    draw(tmp_path / "kinds" / "dog" / "a.png", 3)
    assert load_rows(tmp_path / "kinds", coding).y.tolist() == [1]
    draw(tmp_path / "kinds" / "cow" / "a.png", 3)
    with pytest.raises(UserError, match="has the label 'cow', which the model does not know: expected cat, dog, or no"):
        load_rows(tmp_path / "kinds", coding)
