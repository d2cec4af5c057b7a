"""A user's own tables, CSV and Parquet, good and bad."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import npz, own, own_message

from pa3dfl.data import Columns
from pa3dfl.data.arrays import NO_COLUMNS, Arrays

BOTH, LABEL = Columns(client="who", label="does"), Columns(label="y")


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
    assert "the column 'age' has no value in row 1 (1 of 20" in own_message(tmp_path / "t.parquet", BOTH)
    pq.write_table(pa.table(held | {"age": [[1]] * 20}), tmp_path / "t.parquet")
    assert "the column 'age' holds list<" in own_message(tmp_path / "t.parquet", BOTH)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    assert "cannot be read (" in own_message(tmp_path / "t.parquet", BOTH)


def test_parquet_without_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    assert "needs pyarrow: pip install 'pa3dfl[tables]'" in own_message(tmp_path / "t.parquet", BOTH)


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
    assert reason in own_message(table(tmp_path / "t.csv", rows), columns)


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"")
    assert "is empty" in own_message(tmp_path / "t.csv", BOTH)
    (tmp_path / "t.csv").write_bytes(b"who,does\n\xff\xfe,1\n")
    assert "save it again as CSV in UTF-8" in own_message(tmp_path / "t.csv", BOTH)
    assert "two columns have the same name" in own_message(table(tmp_path / "t.csv", lines(), "a,a,b,c"), BOTH)
    assert "has no columns but does" in own_message(
        table(tmp_path / "t.csv", ["x", "y"] * 9, "does"), Columns(label="does")
    )
    (tmp_path / "own.npz").write_bytes(npz(x=np.ones((4, 2)), y=[0, 1, 0, 1]))
    assert "is no table: --label-column is for .csv and .parquet" in own_message(
        tmp_path / "own.npz", Columns(label="y")
    )
    assert "there is no file" in own_message(tmp_path / "none.csv", BOTH)


def test_small_clients_are_left_out_on_request(tmp_path: Path) -> None:
    rows = [*lines(), *["aa,1,red,sit"] * 9, *["c,2,red,walk"] * 10]
    path = table(tmp_path / "t.csv", rows)
    assert "client 'aa' has 9 rows, and each needs at least 10" in own_message(path, BOTH)
    arrays = own(path, BOTH, "leave-out")
    assert (arrays.names, len(arrays.x)) == (("a", "b", "c"), 30)
    assert arrays.client is not None
    assert np.bincount(arrays.client).tolist() == [10, 10, 10]
    assert "none of 2 clients has 10 rows" in own_message(table(path, lines(10)), BOTH, "leave-out")
