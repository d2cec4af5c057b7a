"""Reports: run directories in, tables and pictures out. Nothing here trains or touches a device."""

from pa3dfl.runs.report.pictures import capacity_picture, learning_curve, partition_picture
from pa3dfl.runs.report.runs import Run, average, find_runs, read_run
from pa3dfl.runs.report.tables import across_seeds, comparison, render

__all__ = [
    "Run",
    "across_seeds",
    "average",
    "capacity_picture",
    "comparison",
    "find_runs",
    "learning_curve",
    "partition_picture",
    "read_run",
    "render",
]
