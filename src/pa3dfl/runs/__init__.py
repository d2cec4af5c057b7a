"""A run on disk, and what people see of it.

    format      the files of a run directory: names, columns, writing, reading
    metrics     means over clients, and the mean of the worst tenth
    run         runs read back, alone or several side by side
    tables      the comparison of runs: records for programs, a table for people
    arrivals    the same for newcomers, by the rounds that they have trained
    pictures    learning curves, accuracy by capacity, partitions
    track       runs followed into TensorBoard, trackio, W&B, MLflow
    personal    a client's own model as files

May use methods and engines, for what they count and score. Trains nothing, and does not know the federation.
The names below are imported when they are first used: pictures need matplotlib, which takes long to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pa3dfl.runs.arrivals import of_newcomers, render_newcomers
    from pa3dfl.runs.pictures import capacity_picture, learning_curve, newcomers_picture, partition_picture
    from pa3dfl.runs.run import Run, average, find_runs, read_run
    from pa3dfl.runs.tables import across_seeds, comparison, render

__all__ = [
    "Run",
    "across_seeds",
    "average",
    "capacity_picture",
    "comparison",
    "find_runs",
    "learning_curve",
    "newcomers_picture",
    "of_newcomers",
    "partition_picture",
    "read_run",
    "render",
    "render_newcomers",
]

_MODULES = {
    "arrivals": ("of_newcomers", "render_newcomers"),
    "pictures": ("capacity_picture", "learning_curve", "newcomers_picture", "partition_picture"),
    "run": ("Run", "average", "find_runs", "read_run"),
    "tables": ("across_seeds", "comparison", "render"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
