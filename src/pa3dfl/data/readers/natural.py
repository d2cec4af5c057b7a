"""The data sets with natural owners, in their published formats: x, y, the owner of each row, and its part."""

import io
import lzma
import os
import re
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pa3dfl.data.arrays import Arrays, Columns
from pa3dfl.data.readers import table
from pa3dfl.data.readers.labelled import of_clients
from pa3dfl.data.readers.published import reading
from pa3dfl.data.readers.texts import CONTEXT, of_texts

WINDOW = 128
"""Time steps of a window: 2.56 seconds at 50 a second. Windows do not overlap, so that no time step is in two parts."""
ACTIVITIES = 6
"""Walking on the level, upstairs, downstairs, sitting, standing, lying; transitions between them are left out."""

SPEECH, EVERY = 1000, 10
"""The fewest characters of a speaker; one in so many characters is a row."""

RATINGS = 100
"""The fewest ratings of a lecturer."""


def hapt_npz(path: Path, _: tuple[str, ...]) -> Arrays:
    """A .npz, perhaps packed by xz, of x, label (from 1, as published; -1: none), user and seq for each step."""
    with reading(path):
        packed = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
            x, label, user, seq = (archive[k] for k in ("x", "label", "user", "seq"))
        same = (np.diff(label) == 0) & (np.diff(user) == 0) & (np.diff(seq) == 0)
        ends = np.append(np.flatnonzero(~same) + 1, len(label))
        starts = np.append(0, ends[:-1])
        pieces = [(x[a:b], label[a], user[a]) for a, b in zip(starts, ends, strict=True)]
    return _windows(pieces)


def hapt_raw(path: Path, _: tuple[str, ...]) -> Arrays:
    """UCI's folder RawData, or the archive with it: labels.txt, and a file for each sensor, experiment and user."""
    with reading(path):
        files = _Files(path, "RawData")
        held: dict[tuple[int, int], np.ndarray] = {}
        pieces = []
        for experiment, user, activity, first, last in np.loadtxt(files.text("labels.txt"), int, ndmin=2).tolist():
            if activity <= ACTIVITIES:  # of the others no signal need be read
                if (experiment, user) not in held:
                    names = [f"{sensor}_exp{experiment:02}_user{user:02}.txt" for sensor in ("acc", "gyro")]
                    held[experiment, user] = np.hstack([np.loadtxt(files.text(n), np.float32) for n in names])
                pieces.append((held[experiment, user][first - 1 : last], activity, user))
    return _windows(pieces)


def _windows(pieces: list[tuple[np.ndarray, int, int]]) -> Arrays:
    x, y, client = [], [], []
    for piece, activity, user in pieces:
        n = len(piece) // WINDOW if 1 <= activity <= ACTIVITIES else 0
        x.append(piece[: n * WINDOW].reshape(n, WINDOW, piece.shape[1]).transpose(0, 2, 1))
        y += [int(activity) - 1] * n
        client += [int(user)] * n
    users, owner = np.unique(client, return_inverse=True)
    signals = np.ascontiguousarray(np.concatenate(x), np.float32)
    return Arrays(signals, np.array(y, np.int64), ACTIVITIES, owner.astype(np.int64), tuple(map(str, users)))


def shakespeare(path: Path, _: tuple[str, ...]) -> Arrays:
    """NLTK's folder of plays as XML, or its archive: every speaker of a play is a client, as in LEAF."""
    with reading(path):
        files = _Files(path, "shakespeare")
        speech: dict[str, list[str]] = {}
        for name in sorted(files.names(".xml")):
            for part in ET.parse(files.text(name)).iter("SPEECH"):
                lines = [" ".join("".join(line.itertext()).split()) for line in part.iter("LINE")]
                for speaker in part.iter("SPEAKER"):
                    who = f"{Path(name).stem}: {(speaker.text or '').strip()}"
                    speech.setdefault(who, []).extend(line for line in lines if line)
        texts = {who: "\n".join(lines) for who, lines in sorted(speech.items())}
        return of_texts({who: t for who, t in texts.items() if len(t) >= SPEECH}, least=CONTEXT, every=EVERY)


def inst_eval(path: Path, _: tuple[str, ...]) -> Arrays:
    """Ratings of lectures by students: every lecturer is a client."""
    inputs = ("studage", "lectage", "service", "dept")
    whole = dict(table.load(path))
    # These inputs are categories whose names are numbers.
    whole |= {k: whole[k].astype(int).astype(str) for k in inputs if k in whole}
    arrays = table.chosen(path, whole, Columns(client="d", label="y", inputs=",".join(inputs)))
    assert arrays.client is not None
    return of_clients(arrays, np.bincount(arrays.client) >= RATINGS)


class _Files:
    """The files of a folder, or those of a folder within an archive, by name."""

    def __init__(self, path: Path, inside: str) -> None:
        self.folder = path if os.path.isdir(path) else None
        self.archive = None if self.folder else zipfile.ZipFile(path)
        members = [] if self.archive is None else self.archive.namelist()
        self.members = {m.rsplit("/", 1)[1]: m for m in members if re.search(rf"(^|/){inside}/[^/]+$", m)}

    def names(self, suffix: str) -> Iterator[str]:
        held = os.listdir(self.folder) if self.folder else self.members
        return (n for n in held if n.endswith(suffix))

    def text(self, name: str) -> io.TextIOBase:
        if self.folder:
            return open(self.folder / name, encoding="utf-8")
        assert self.archive is not None
        if name not in self.members:
            raise ValueError(f"it has no {name}")
        return io.TextIOWrapper(self.archive.open(self.members[name]), "utf-8")
