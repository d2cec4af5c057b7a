"""A folder of texts, one .txt for each client: the next character is to be predicted."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.data.arrays import Arrays
from pa3dfl.data.readers.published import reading
from pa3dfl.data.readers.sequences import alphabet, in_order, tokens, windows

CONTEXT = 80


def read(folder: Path) -> Arrays:
    texts = {}
    for path in sorted(folder.glob("*.txt")):
        with reading(path, "save it as UTF-8"):
            texts[path.stem] = path.read_text("utf-8-sig")
        if not texts[path.stem].strip():
            raise UserError(f"{path} is empty: write the client's text into it, or remove the file")
    return of_texts(texts)


def of_texts(texts: Mapping[str, str], least: int = 1, every: int = 1) -> Arrays:
    """A row for every `every`th character after the first `least` of a client's text."""
    known = alphabet(list(texts.values()))
    x, y, client, part = [], [], [], []
    for i, text in enumerate(texts.values()):
        own, following = (a[::every] for a in windows(tokens(text, known), CONTEXT, least))
        x.append(own)
        y.append(following)
        client.append(np.full(len(own), i))
        part.append(in_order(len(own)))
    # A character is the same number among inputs and labels; 0, which is padding, is the label of none.
    return Arrays(
        np.concatenate(x), np.concatenate(y), len(known) + 1, np.concatenate(client), tuple(texts), np.concatenate(part)
    )
