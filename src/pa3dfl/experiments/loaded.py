"""A run as an object: its tables, and its clients' models."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pa3dfl.runs import rundata

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class LoadedRun(rundata.RunData):
    """A run, finished or not. Tables are read when they are first used."""

    def model(self, client: int, data_dir: str | None = None) -> "nn.Module":
        """The model of a client that was tested at its best evaluation, as a network with weights.

        It is computed again from the run, and refused if its accuracy on the client's test rows has changed.
        `data_dir` names the folder of the data, if it has moved.
        """
        from pa3dfl.experiments.export import module  # tables need no PyTorch

        return module(self.path, client, data_dir)


def load(path: str | Path) -> LoadedRun:
    """The run in this directory."""
    found = rundata.load(path)
    return LoadedRun(found.path, found.config)
