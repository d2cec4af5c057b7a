"""A user's own data as LEAF's JSON and as folders of images and texts, good and bad."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from written import own, own_message, write

from pa3dfl.core.errors import UserError
from pa3dfl.data import Splits
from pa3dfl.data.arrays import TEST, TRAIN, VAL

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
    assert "the unknown label 5: it is in test rows and in no training row" in own_message(tmp_path)


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
    ('{"users": ["u"], "user_data": {"u": {"x": [[1.0, 2.0], [1.0]], "y": [0, 1]}}}', "numbers have 1 to 2 entries"),
]


@pytest.mark.parametrize(("text", "reason"), BAD_LEAF)
def test_files_that_are_not_leaf_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert reason in own_message(tmp_path / "bad.json")


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
    assert "is empty" in own_message(tmp_path)
    draw(tmp_path / "cat" / "1.png")
    draw(tmp_path / "dog" / "1.png", size=(6, 4))
    assert "has (6, 4) pixels, others (5, 4): give all images one size" in own_message(tmp_path)
    draw(tmp_path / "dog" / "deep" / "2.png")
    assert "expected all images as class/image or all as client/class/image" in own_message(tmp_path)
    (tmp_path / "dog" / "deep" / "2.png").unlink()
    (tmp_path / "dog" / "1.png").write_bytes(b"no image")
    assert f"{tmp_path}/dog/1.png cannot be read (" in own_message(tmp_path)


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
    assert "b.txt is empty" in own_message(tmp_path)
    (tmp_path / "b.txt").write_bytes(b"\xff\xff")
    assert "b.txt cannot be read (" in own_message(tmp_path)
    (tmp_path / "b.txt").write_text("short")
    assert "client 'b' has 4 rows" in own_message(tmp_path)


@pytest.mark.parametrize("text", ["a", "ab", "abc"])
def test_a_text_of_very_few_characters_is_a_client_with_too_few_rows(text: str, tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"hello hello hello", "b.txt": text.encode()})
    rows = f"{len(text) - 1} row{'' if len(text) == 2 else 's'}"
    assert f"client 'b' has {rows}, and each needs at least 10" in own_message(tmp_path)
    assert own(tmp_path, small="leave-out").names == ("a",)
