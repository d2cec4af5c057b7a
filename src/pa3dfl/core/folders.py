"""Folders with known entries."""

from pathlib import Path
from typing import Any


class Entry:
    """A file or folder at a fixed place below `path` of the object that has it: `config = Entry("config.yaml")`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, kind: type) -> Path:
        path: Path = folder.path / self.name
        return path
