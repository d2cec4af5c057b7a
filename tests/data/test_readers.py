"""A user's own data in the formats that people have, good and bad."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from written import npz, write

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import identity
from pa3dfl.data import Columns, Splits
from pa3dfl.data.arrays import NO_COLUMNS, TEST, TRAIN, VAL, Arrays
from pa3dfl.data.sources import load
from pa3dfl.methods import assembly

BOTH = Columns(client="who", label="does")


def own(path: Path, columns: Columns = NO_COLUMNS, small: str = "refuse") -> Arrays:
    return load(str(path), columns=columns, small=small)


def message(path: Path, columns: Columns = NO_COLUMNS, small: str = "refuse") -> str:
    with pytest.raises(UserError) as error:
        own(path, columns, small)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


# Tables


def lines(rows: int = 20) -> list[str]:
    """Owners b and a take turns; ages are 0, 1, 2, …; a colour is an input with two categories."""
    return [f"{'ba'[i % 2]},{i},{('red', 'blue')[i % 4 // 2]},{('sit', 'walk')[i % 3 > 0]}" for i in range(rows)]


def table(path: Path, rows: list[str], header: str = "who,age,colour,does") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def check_table(arrays: Arrays) -> None:
    age = np.arange(20)
    np.testing.assert_allclose(arrays.x[:, 0], (age - 9.5) / age.std(), rtol=1e-6)
    np.testing.assert_array_equal(arrays.x[:, 1], age % 4 // 2 == 1)  # blue, the first by name
    np.testing.assert_array_equal(arrays.x[:, 2], age % 4 // 2 == 0)
    assert (arrays.x.dtype, arrays.x.shape, arrays.classes) == (np.float32, (20, 3), 2)
    assert arrays.y.tolist() == [int(i % 3 > 0) for i in range(20)]


def test_csv(tmp_path: Path) -> None:
    arrays = own(table(tmp_path / "t.csv", lines()), BOTH)
    check_table(arrays)
    assert arrays.client is not None
    assert (arrays.client.tolist(), arrays.names) == ([1, 0] * 10, ("a", "b"))
    check_table(own(table(tmp_path / "s.csv", [r.replace(",", ";") for r in lines()], "who;age;colour;does"), BOTH))
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "t.csv").read_bytes())  # as spreadsheets write it
    check_table(own(tmp_path / "t.csv", BOTH))


def test_without_a_client_column_there_are_no_owners(tmp_path: Path) -> None:
    arrays = own(table(tmp_path / "t.csv", lines()), Columns(label="does", inputs="age"))
    assert (arrays.client, arrays.x.shape) == (None, (20, 1))


def test_labels_that_are_numbers_are_ranked(tmp_path: Path) -> None:
    rows = [f"{i},{(3.0, 1, -2)[i % 3]}" for i in range(12)]
    arrays = own(table(tmp_path / "t.csv", rows, "a,b"), Columns(label="b"))
    assert (arrays.y.tolist(), arrays.classes) == ([2, 1, 0] * 4, 3)


def test_parquet_is_the_csv(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns: list[list[Any]] = [list(c) for c in zip(*(r.split(",") for r in lines()), strict=True)]
    columns[1] = list(map(int, columns[1]))
    held = dict(zip(("who", "age", "colour", "does"), columns, strict=True))
    whole = pa.table(held)
    whole = whole.set_column(2, "colour", whole["colour"].dictionary_encode())
    pq.write_table(whole, tmp_path / "t.parquet")
    check_table(own(tmp_path / "t.parquet", BOTH))
    pq.write_table(pa.table(held | {"age": [None, *range(19)]}), tmp_path / "t.parquet")
    assert "the column 'age' has no value in row 1 (1 of 20" in message(tmp_path / "t.parquet", BOTH)
    pq.write_table(pa.table(held | {"age": [[1]] * 20}), tmp_path / "t.parquet")
    assert "the column 'age' holds list<" in message(tmp_path / "t.parquet", BOTH)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    assert "cannot be read (" in message(tmp_path / "t.parquet", BOTH)


def test_parquet_without_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    assert "needs pyarrow: pip install 'pa3dfl[tables]'" in message(tmp_path / "t.parquet", BOTH)


BAD_TABLES: list[tuple[list[str], Columns, str]] = [
    ([], BOTH, "is empty"),
    (lines(), NO_COLUMNS, "needs --label-column, the column to predict: one of who, age, colour, does"),
    (lines(), Columns(label="dose"), "no column 'dose', did you mean does?: it has who, age, colour, does"),
    (lines(), Columns("owner", "does"), "no column 'owner'"),
    (lines(), Columns("who", "does", "age,height"), "no column 'height'"),
    (lines(), Columns("who", "does", "age,does"), "'does' cannot be an input too"),
    (["a,1,red,sit", "b,2"], BOTH, "row 2 has 2 values for 4 columns"),
    (["a,,red,sit", *lines()], BOTH, "the column 'age' has no value in row 1 (1 of 21 rows are empty"),
    ([*lines(), "a,NaN,red,sit"], BOTH, "the column 'age' has no value in row 21"),
    ([*lines(), "a,inf,red,sit"], BOTH, "the column 'age' has no value in row 21"),
    ([*lines(), "a,1,red,"], BOTH, "the column 'does' has no value in row 21"),
    ([*lines(), ",1,red,sit"], BOTH, "the column 'who' has no value in row 21"),
    (lines(), Columns(label="age"), "20 different labels in 20 rows: expected classes"),
    ([r.replace("walk", "sit") for r in lines()], BOTH, "only the label 'sit'"),
    (lines(18), BOTH, "client 'a' has 9 rows (2 of 2 clients have too few), and each needs at least 10; add rows, or"),
    ([f"w{i},1,c{i},{'xy'[i % 2]}" for i in range(101)], Columns(label="does"), "'who' has 101 categories, more than"),
]


@pytest.mark.parametrize(("rows", "columns", "reason"), BAD_TABLES)
def test_invalid_tables_are_refused(tmp_path: Path, rows: list[str], columns: Columns, reason: str) -> None:
    assert reason in message(table(tmp_path / "t.csv", rows), columns)


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"")
    assert "is empty" in message(tmp_path / "t.csv", BOTH)
    (tmp_path / "t.csv").write_bytes(b"who,does\n\xff\xfe,1\n")
    assert "save it again as CSV in UTF-8" in message(tmp_path / "t.csv", BOTH)
    assert "two columns have the same name" in message(table(tmp_path / "t.csv", lines(), "a,a,b,c"), BOTH)
    assert "has no columns but does" in message(
        table(tmp_path / "t.csv", ["x", "y"] * 9, "does"), Columns(label="does")
    )
    (tmp_path / "own.npz").write_bytes(npz(x=np.ones((4, 2)), y=[0, 1, 0, 1]))
    assert "is no table: --label-column is for .csv and .parquet" in message(tmp_path / "own.npz", Columns(label="y"))
    assert "there is no file" in message(tmp_path / "none.csv", BOTH)


def test_small_clients_are_left_out_on_request(tmp_path: Path) -> None:
    rows = [*lines(), *["aa,1,red,sit"] * 9, *["c,2,red,walk"] * 10]
    path = table(tmp_path / "t.csv", rows)
    assert "client 'aa' has 9 rows, and each needs at least 10" in message(path, BOTH)
    arrays = own(path, BOTH, "leave-out")
    assert (arrays.names, len(arrays.x)) == (("a", "b", "c"), 30)
    assert arrays.client is not None
    assert np.bincount(arrays.client).tolist() == [10, 10, 10]
    assert "none of 2 clients has 10 rows" in message(table(path, lines(10)), BOTH, "leave-out")


# LEAF


def leaf(path: Path, users: dict[str, tuple[list[Any], list[Any]]]) -> Path:
    data = {u: {"x": x, "y": y} for u, (x, y) in users.items()}
    write(path.parent, {path.name: json.dumps({"users": list(data), "num_samples": [], "user_data": data}).encode()})
    return path


def test_leaf_texts_are_padded_tokens(tmp_path: Path) -> None:
    path = leaf(tmp_path / "all.json", {"u2": (["ab", "c"] * 5, ["a", "b"] * 5), "u1": (["abc"] * 10, ["b"] * 10)})
    arrays = own(path)
    assert arrays.x[[0, 1, 10]].tolist() == [[1, 2, 0], [3, 0, 0], [1, 2, 3]]
    assert (arrays.x.dtype, arrays.classes, arrays.names) == (np.int32, 2, ("u1", "u2"))
    assert arrays.y.tolist() == [0, 1] * 5 + [1] * 10


def test_leaf_numbers(tmp_path: Path) -> None:
    images = own(leaf(tmp_path / "a.json", {"u": ([[0.5] * 784] * 10, [4, 7] * 5)}))
    assert (images.x.shape, images.x.dtype, images.y.tolist()) == ((10, 1, 28, 28), np.float32, [0, 1] * 5)
    signals = own(leaf(tmp_path / "b.json", {"u": ([[[1.5, 2], [3, 4]], [[5.5], [6]]] * 5, [0, 1] * 5)}))
    assert signals.x[:2].tolist() == [[[1.5, 2], [3, 4]], [[5.5, 0], [6, 0]]]
    words = own(leaf(tmp_path / "c.json", {"u": ([[0, 7], [3]] * 5, [0, 1] * 5)}))
    assert words.x[:2].tolist() == [[1, 8], [4, 0]]  # no token is 0, which is padding


def test_leaf_folder_with_its_own_split(tmp_path: Path) -> None:
    x, y = [[float(i)] for i in range(20)], [0, 1] * 10
    leaf(tmp_path / "train" / "part1.json", {"u": (x[:15], y[:15]), "v": (x[:9], y[:9])})
    leaf(tmp_path / "test" / "part1.json", {"u": (x[15:], y[15:])})
    leaf(tmp_path / "test" / "part2.json", {"v": (x[9:11], y[9:11])})
    arrays = own(tmp_path)
    assert arrays.client is not None
    assert arrays.part is not None
    assert [np.sum(arrays.part == p) for p in (TRAIN, VAL, TEST)] == [24, 0, 7]
    parts = Splits([np.flatnonzero(arrays.client == i) for i in (0, 1)], 0, arrays.part)
    assert sorted(arrays.x[parts[0].test, 0]) == [15, 16, 17, 18, 19]
    assert (len(parts[0].train), len(parts[0].val), parts.trained(0), len(parts[1].train)) == (14, 1, 14, 8)
    assert not set(parts[0].val) & set(parts[0].train)
    leaf(tmp_path / "test" / "part2.json", {"v": (x[9:11], [5, 0])})
    assert "the unknown label 5: it is in test rows and in no training row" in message(tmp_path)


def test_a_client_without_test_rows(tmp_path: Path) -> None:
    part = np.array([TRAIN, TRAIN, TRAIN, TEST, TEST, TEST, TRAIN], np.int8)
    with pytest.raises(UserError, match="client 0 has 3 rows to train and 0 to test"):
        Splits([np.arange(3), np.arange(3, 7)], 0, part)
    with pytest.raises(UserError, match="client 0 has 1 row to train and 3 to test"):
        Splits([np.arange(3, 7)], 0, part)


BAD_LEAF: list[tuple[str, str]] = [
    ("", "expected LEAF's JSON"),
    ("[]", "expected LEAF's JSON"),
    ('{"users": ["u"]}', "expected LEAF's JSON"),
    ('{"users": [], "user_data": {}}', "is empty"),
    ('{"users": ["u"], "user_data": {"u": {"x": [[1]], "y": []}}}', "user 'u' has 1 x and 0 y"),
    ('{"users": ["u"], "user_data": {"u": {"x": [[1]], "y": [null]}}}', "a y that is no label"),
    ('{"users": ["u"], "user_data": {"u": {"x": [[1]], "y": [NaN]}}}', "a y that is no label"),
    ('{"users": ["u"], "user_data": {"u": {"x": [[1.5], [NaN]], "y": [0, 1]}}}', "NaN or infinite"),
    ('{"users": ["u"], "user_data": {"u": {"x": [["a", "b"], "c"], "y": [0, 1]}}}', "neither a text nor a list"),
    ('{"users": ["u"], "user_data": {"u": {"x": [[[1, 2], [3]], [1]], "y": [0, 1]}}}', "numbers, nested alike"),
]


@pytest.mark.parametrize(("text", "reason"), BAD_LEAF)
def test_files_that_are_not_leaf_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert reason in message(tmp_path / "bad.json")


# Images


def draw(path: Path, mode: str = "L", size: tuple[int, int] = (5, 4), value: int = 9) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 1)).save(path)


def test_images_by_class_and_by_client(tmp_path: Path) -> None:
    for i in range(4):
        draw(tmp_path / "plain" / ("cat", "dog")[i % 2] / f"{i}.png", value=i)
    (tmp_path / "plain" / "readme.md").write_text("")
    arrays = own(tmp_path / "plain")
    assert (arrays.x.dtype, arrays.x.shape, arrays.client, arrays.classes) == (np.uint8, (4, 1, 4, 5), None, 2)
    assert (arrays.x[:, 0, 0, 0].tolist(), arrays.y.tolist()) == ([0, 2, 1, 3], [0, 0, 1, 1])
    for i in range(20):
        draw(
            tmp_path / "owned" / "vu"[i % 2] / ("cat", "dog")[i % 4 // 2] / f"{i:02}.png", "RGB" if i else "L", value=i
        )
    arrays = own(tmp_path / "owned")
    assert (arrays.x.shape, arrays.names, arrays.classes) == ((20, 3, 4, 5), ("u", "v"), 2)
    assert arrays.client is not None
    assert arrays.client.tolist() == [0] * 10 + [1] * 10
    assert arrays.y.tolist() == [0] * 5 + [1] * 5 + [0] * 5 + [1] * 5
    assert arrays.x[[0, 5, 10], :, 0, 0].tolist() == [[1, 0, 1], [3, 0, 1], [0, 0, 0]]


def test_invalid_image_folders_are_refused(tmp_path: Path) -> None:
    assert "is empty" in message(tmp_path)
    draw(tmp_path / "cat" / "1.png")
    draw(tmp_path / "dog" / "1.png", size=(6, 4))
    assert "has (6, 4) pixels, others (5, 4): give all images one size" in message(tmp_path)
    draw(tmp_path / "dog" / "deep" / "2.png")
    assert "expected all images as class/image or all as client/class/image" in message(tmp_path)
    (tmp_path / "dog" / "deep" / "2.png").unlink()
    (tmp_path / "dog" / "1.png").write_bytes(b"no image")
    assert f"{tmp_path}/dog/1.png cannot be read (" in message(tmp_path)


# Texts


def test_texts_give_a_row_for_each_character(tmp_path: Path) -> None:
    text = "abcab" * 20
    write(tmp_path, {"zoe.txt": text.encode(), "al.txt": "cab é".encode() * 10})
    arrays = own(tmp_path)
    assert (arrays.names, arrays.x.dtype, arrays.x.shape[1]) == (("al", "zoe"), np.int32, 80)
    assert arrays.client is not None
    assert arrays.part is not None
    mine = arrays.client == 1
    known = {c: i for i, c in enumerate(" abcé", 1)}
    assert (mine.sum(), arrays.classes) == (99, 6)
    assert arrays.y[mine].tolist() == [known[c] for c in text[1:]]
    assert arrays.x[mine][0].tolist() == [known["a"]] + [0] * 79
    assert arrays.x[mine][98].tolist() == [known[c] for c in text[19:99]]
    assert arrays.part[mine].tolist() == [TRAIN] * 81 + [VAL] * 9 + [TEST] * 9


def test_invalid_text_folders_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"hello hello hello", "b.txt": b" \n"})
    assert "b.txt is empty" in message(tmp_path)
    (tmp_path / "b.txt").write_bytes(b"\xff\xff")
    assert "b.txt cannot be read (" in message(tmp_path)
    (tmp_path / "b.txt").write_text("short")
    assert "client 'b' has 4 rows" in message(tmp_path)


# What a run says


@pytest.mark.parametrize(
    ("x", "model", "better"),
    [
        (np.ones((20, 8), np.float32), "cnn-fashion", "mlp-tabular"),
        (np.ones((20, 8), np.int32), "cnn-fashion", "lstm-text"),
        (np.ones((20, 3, 8), np.float32), "cnn-fashion", "cnn-sensor"),
        (np.ones((20, 3, 8, 8), np.uint8), "cnn-sensor", "cnn-fashion"),
    ],
)
def test_a_network_that_does_not_fit_the_data_is_refused(x: np.ndarray, model: str, better: str) -> None:
    config = assembly.configure({"data": "own.npz", "model": model, "method": "fedavg", "clients": 2})
    with pytest.raises(UserError, match=f"model '{model}'.*; for this data try --model {better}"):
        assembly.make_task(config, assembly.make_method(config), Arrays(x, np.arange(20) % 2, 2))


def test_tokens_beyond_the_embedding_are_refused() -> None:
    config = assembly.configure({"data": "own.npz", "model": "lstm-text", "method": "fedavg", "clients": 2})
    x, y = np.arange(80).reshape(20, 4), np.arange(20) % 2
    task = assembly.make_task(config, assembly.make_method(config), Arrays(x, y, 2))
    assert task.model.whole_numbers
    for low, high in ((0, 256), (-1, 3)):
        x[0, 0], x[1, 1] = low, high
        said = f"tokens from {low} to {max(high, 79)}, and model 'lstm-text' knows 0 to 255: renumber them"
        with pytest.raises(UserError, match=said):
            assembly.make_task(config, assembly.make_method(config), Arrays(x, y, 2))


def test_tables_have_a_default_network() -> None:
    assert assembly.configure({"data": "folder/t.csv"}).model == "mlp-tabular"
    assert assembly.configure({"data": "own.npz"}).model == "cnn-fashion"


def test_unused_later_options_do_not_change_the_hash() -> None:
    plain = assembly.configure({"data": "t.csv"})
    assert "label_column" not in identity(plain)
    assert plain.hash() != assembly.configure({"data": "t.csv", "label_column": "y"}).hash()
