"""Data sets whose owners are people: small files as their publishers give them."""

import io
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest
from written import Files, message, npz, write

from pa3dfl.data import Arrays, sources
from pa3dfl.data.arrays import TEST, TRAIN
from pa3dfl.data.readers.natural import WINDOW
from pa3dfl.data.sources import available, load


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PA3DFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_DEBIAN", tmp_path / "debian")


def zipped(files: Files) -> bytes:
    with zipfile.ZipFile(packed := io.BytesIO(), "w") as archive:
        for name, blob in files.items():
            archive.writestr(name, blob)
    return packed.getvalue()


def check_owned(arrays: Arrays, classes: int, names: tuple[str, ...]) -> np.ndarray:
    assert (arrays.classes, arrays.names) == (classes, names)
    assert arrays.client is not None
    assert (arrays.y.dtype, arrays.client.dtype) == (np.int64, np.int64)
    return arrays.client


# Two people with 300 and 300 moments; the second sits from moment 11 (counted from 1) for two windows and a rest.
SIGNAL = np.arange(300)[:, None] * np.array([1, 10, 100]) / 1000
LABELS = f"1 1 1 1 {WINDOW}\n2 7 4 11 {10 + 2 * WINDOW + 5}\n2 7 8 280 290\n"
RAW = {
    f"{sensor}_exp0{e}_user0{user}.txt": "\n".join(" ".join(map(str, row)) for row in SIGNAL + sign * user).encode()
    for e, user in ((1, 1), (2, 7))
    for sensor, sign in (("acc", 1), ("gyro", -1))
} | {"labels.txt": LABELS.encode()}


def moments() -> bytes:
    """The same data with one array for each column."""
    x = np.concatenate([np.hstack([SIGNAL + user, SIGNAL - user]) for user in (1, 7)]).astype(np.float32)
    label = np.full(600, -1, np.int8)
    label[:WINDOW], label[310 : 310 + 2 * WINDOW + 5], label[579:590] = 1, 4, 8
    user, seq = np.repeat([1, 7], 300).astype(np.int8), np.repeat([0, 1], 300).astype(np.int8)
    return npz(x=x, label=label, user=user, seq=seq, columns=["acc-x"])


@pytest.mark.parametrize(
    "files",
    [
        {f"RawData/{name}": blob for name, blob in RAW.items()},
        {"HAPT Data Set.zip": zipped({f"HAPT Data Set/RawData/{name}": blob for name, blob in RAW.items()})},
        {"hapt.npz": moments()},
        {"hapt.npz.xz": lzma.compress(moments())},
    ],
    ids=["folder", "zip", "npz", "xz"],
)
def test_hapt(tmp_path: Path, files: Files) -> None:
    arrays = load("hapt", write(tmp_path, files))
    assert check_owned(arrays, 6, ("1", "7")).tolist() == [0, 1, 1]
    assert (arrays.x.shape, arrays.x.dtype, arrays.y.tolist()) == ((3, 6, WINDOW), np.float32, [0, 3, 3])
    expected = np.hstack([SIGNAL + 7, SIGNAL - 7])[10 + WINDOW : 10 + 2 * WINDOW].T
    np.testing.assert_allclose(arrays.x[2], expected, rtol=1e-6)
    assert arrays.part is None


def test_broken_hapt(tmp_path: Path) -> None:
    lost = {f"RawData/{name}": blob for name, blob in RAW.items() if not name.startswith("gyro")}
    assert "cannot be read (" in message("hapt", write(tmp_path / "a", lost))
    assert "it has no labels.txt" in message("hapt", write(tmp_path / "b", {"HAPT Data Set.zip": zipped({"x": b""})}))
    assert "cannot be read (" in message("hapt", write(tmp_path / "c", {"hapt.npz": moments()[:900]}))
    (tmp_path / "d").mkdir()
    assert "https://archive.ics.uci.edu/dataset/341 into one of them or pass" in message("hapt", tmp_path / "d")


def play(lines: dict[str, list[str]]) -> bytes:
    speeches = "".join(
        f"<SPEECH><SPEAKER>{who}</SPEAKER>{''.join(f'<LINE>{line}</LINE>' for line in said)}</SPEECH>"
        for who, said in lines.items()
    )
    return f'<?xml version="1.0"?><!DOCTYPE PLAY SYSTEM "play.dtd"><PLAY><ACT>{speeches}</ACT></PLAY>'.encode()


EMPTY = {f"{p}.xml": play({}) for p in ("a_and_c", "dream", "j_caesar", "macbeth", "merchant", "othello", "r_and_j")}
WORDS = "abcdefghi "
PLAYS = {**EMPTY, "hamlet.xml": play({"HAMLET": [WORDS * 60, "<STAGEDIR>Aside</STAGEDIR> No"], "FOOL": ["Hm"]})}
PLAYS["dream.xml"] = play({"PUCK": ["x" * 1080], "BOTH</SPEAKER><SPEAKER>TWO": ["no"]})
PLAYS["hamlet.xml"] = (
    PLAYS["hamlet.xml"]
    .replace(b"</ACT>", b"")
    .replace(
        b"</PLAY>", b"<SPEECH><SPEAKER>HAMLET</SPEAKER><LINE>" + WORDS.encode() * 60 + b"</LINE></SPEECH></ACT></PLAY>"
    )
)


@pytest.mark.parametrize("how", ["folder", "zip"])
def test_shakespeare(tmp_path: Path, how: str) -> None:
    named = {f"shakespeare/{name}": blob for name, blob in PLAYS.items()}
    arrays = load("shakespeare", write(tmp_path, named if how == "folder" else {"shakespeare.zip": zipped(named)}))
    letters = sorted(set(f"{WORDS}x\nAside No"))  # of the speakers that are kept
    client = check_owned(arrays, len(letters) + 1, ("dream: PUCK", "hamlet: HAMLET"))
    assert arrays.x.shape[1] == 80
    assert np.bincount(client).tolist() == [100, (2 * len((WORDS * 60).strip()) + len("\nAside No\n") - 80 + 9) // 10]
    known = {c: i for i, c in enumerate(letters, 1)}
    assert arrays.y[client == 0].tolist() == [known["x"]] * 100
    first = arrays.x[client == 1][0]
    assert first.tolist() == [known[c] for c in (WORDS * 60)[:80]]
    assert arrays.y[client == 1][0] == known["a"]
    assert arrays.part is not None
    assert arrays.part[client == 0].tolist() == [TRAIN] * 80 + [1] * 10 + [TEST] * 10


def test_broken_shakespeare(tmp_path: Path) -> None:
    named = {f"shakespeare/{name}": blob for name, blob in (PLAYS | {"othello.xml": b"<PLAY>"}).items()}
    assert "cannot be read (" in message("shakespeare", write(tmp_path / "a", named))
    del named["shakespeare/othello.xml"]
    assert "incomplete, add othello.xml to it" in message("shakespeare", write(tmp_path / "b", named))


HEADER = '"","s","d","studage","lectage","service","dept","y"'


def ratings(rows: int = 300) -> bytes:
    """Lecturers 5 and 11 have a hundred each, lecturer 7 the rest, split with lecturer 9."""
    who = [(5, 11, 7 if i % 2 else 9)[i % 3] for i in range(rows)]
    lines = [f'"{i + 1}","{i}","{d}","{2 + i % 2}","1","0","{1 + i % 4}",{1 + i % 5}' for i, d in enumerate(who)]
    return "\n".join([HEADER, *lines, ""]).encode()


def test_inst_eval(tmp_path: Path) -> None:
    arrays = load("inst-eval", write(tmp_path, {"InstEval.csv": ratings()}))
    client = check_owned(arrays, 5, ("5", "11"))
    assert np.bincount(client).tolist() == [100, 100]
    assert arrays.x.shape == (200, 2 + 1 + 1 + 4)  # numbers that stand for categories
    assert set(np.unique(arrays.x)) == {0.0, 1.0}
    assert "no column 'd'" in message("inst-eval", write(tmp_path, {"InstEval.csv": ratings().replace(b'"d"', b'"e"')}))


def test_hints_say_how_to_get_missing_data(tmp_path: Path) -> None:
    hints = {f.name: f.hint for f in available(tmp_path)}
    assert "nltk.downloader shakespeare" in hints["shakespeare"]
    assert "InstEval.csv from https://" in hints["inst-eval"]
