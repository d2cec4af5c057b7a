"""A data set in memory, and the columns of a table that it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TRAIN, VAL, TEST = 0, 1, 2
UNKNOWN = -1
"""The label of a row that is to be predicted and has none."""

Coding = Mapping[str, Any]
"""How a reader turned names, categories and characters into numbers; JSON, so that a model's card can hold it."""


@dataclass(frozen=True)
class Arrays:
    """A data set in memory."""

    x: np.ndarray
    """uint8 images (N, C, H, W), float32 features (N, ...), or whole numbers that are tokens (N, positions)."""
    y: np.ndarray  # int64 (N,), labels 0..classes-1
    classes: int
    client: np.ndarray | None = None  # int64 (N,), who owns each row, 0..clients-1
    names: tuple[str, ...] = ()
    """The clients' names in the data, by number."""
    part: np.ndarray | None = None
    """int8 (N,), TRAIN, VAL or TEST, where the data says so itself. Without a VAL it is drawn from TRAIN."""
    coding: Coding = field(default_factory=dict)
    """How to read further files in the same way. Empty: files hold the numbers themselves."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table: the owner of a row, the label, the inputs."""

    client: str | None = None
    label: str | None = None
    inputs: str | None = None
    """Names separated by commas; None: all others."""

    def given(self) -> list[str]:
        """The flags of the columns that were named."""
        values = {"--client-column": self.client, "--label-column": self.label, "--input-columns": self.inputs}
        return [option for option, value in values.items() if value is not None]


NO_COLUMNS = Columns()
