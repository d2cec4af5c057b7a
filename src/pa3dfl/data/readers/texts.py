"""A folder of texts, one .txt for each client: the next character is to be predicted."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.data.arrays import Arrays, Coding
from pa3dfl.data.readers.published import reading
from pa3dfl.data.readers.sequences import alphabet, in_order, tokens, windows

CONTEXT = 80


def read(folder: Path) -> Arrays:
    return of_texts(_texts(folder))


def rows(folder: Path, coding: Coding) -> Arrays:
    """Rows to predict. A text holds its own labels."""
    with reading(folder, "remove it, or use a model that was trained on such texts"):
        arrays = of_texts(_texts(folder), known=coding["labels"][1:])
    if not len(arrays.y):
        raise UserError(f"{folder} has no character to predict: expected a text of at least two characters")
    return arrays


def _texts(folder: Path) -> Mapping[str, str]:
    texts = {}
    for path in sorted(folder.glob("*.txt")):
        with reading(path, "save it as UTF-8"):
            texts[path.stem] = path.read_text("utf-8-sig")
        if not texts[path.stem].strip():
            raise UserError(f"{path} is empty: write the client's text into it, or remove the file")
    return texts


def of_texts(
    texts: Mapping[str, str], least: int = 1, every: int = 1, known: Sequence[str] | None = None
) -> Arrays:  # fmt: skip
    """A row for every `every`th character after the first `least` of a client's text."""
    numbers = alphabet(list(texts.values()) if known is None else known)
    x, y, client, part = [], [], [], []
    for i, text in enumerate(texts.values()):
        own, following = (a[::every] for a in windows(tokens(text, numbers), CONTEXT, least))
        x.append(own)
        y.append(following)
        client.append(np.full(len(own), i))
        part.append(in_order(len(own)))
    # A character is the same number among inputs and labels; 0, which is padding, is the label of none.
    coding = {"kind": "texts", "labels": ["", *numbers]}
    owner, parts = np.concatenate(client), np.concatenate(part)
    return Arrays(np.concatenate(x), np.concatenate(y), len(numbers) + 1, owner, tuple(texts), parts, coding)
