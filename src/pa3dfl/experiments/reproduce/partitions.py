"""The distribution of labels to clients, for each data set of the paper."""

from pathlib import Path
from typing import Any

import numpy as np

from pa3dfl.core.options.config import Config
from pa3dfl.data import label_counts
from pa3dfl.experiments.reproduce import records
from pa3dfl.methods import assembly
from pa3dfl.runs import partition_picture


def counts(config: Config) -> np.ndarray:
    """(clients, labels)"""
    arrays = assembly.arrays_of(config)
    _, rows = assembly.owners(config, arrays)
    return label_counts(rows, arrays.y, arrays.classes)


def run(config: Config, results: Path) -> Path:
    """Record the partition of a config's data, once."""
    name = Path(config.data).stem
    path = results / "partitions" / f"{name}.json"
    if path.is_file():
        return path
    about = {"data": config.data, "partition": config.partition or "iid", "seed": config.seed}
    return records.write(about | {"counts": counts(config).tolist()}, path.parent, name)


def pictures(results: Path, folder: Path) -> list[tuple[str, Path]]:
    """A title and a picture for each recorded partition."""
    drawn = []
    for path in sorted((results / "partitions").glob("*.json")):
        record: dict[str, Any] = records.read(path) or {}
        title = f"{path.stem}, {record['partition']}, seed {record['seed']}"
        out = folder / f"partition-{path.stem}.png"
        drawn.append((title, partition_picture(np.array(record["counts"]), out, title)))
        out.with_suffix(".svg").unlink(missing_ok=True)
    return drawn
