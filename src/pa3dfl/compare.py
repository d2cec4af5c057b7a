"""Several methods and seeds on equal terms: the same task, split and rounds for all; what is done is not done again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pa3dfl import api
from pa3dfl.config import read_yaml
from pa3dfl.errors import UserError
from pa3dfl.results import RunDirectory

# All twelve methods in a quarter of an hour on two cores: the demo's federation.
QUICK = {
    "data": "fashion-mnist-10k", "clients": 40, "per_round": 8, "rounds": 24, "epochs": 2, "eval_every": 8,
    "patience": 1, "methods": {"pa3dfl": {"hidden": 16}},
}  # fmt: skip


def compare(given: Mapping[str, Any], names: Sequence[str], seeds: Sequence[int], out: Path) -> list[Path]:
    """Train what is missing under `out`; returns all run directories, method by method."""
    paths = []
    for name in names:
        for seed in seeds:
            path = out / f"{name.replace(':', '-')}-{seed}"
            _complete({**given, "method": name, "seed": seed, "out": str(path)}, path)
            paths.append(path)
    return paths


def _complete(given: Mapping[str, Any], path: Path) -> None:
    config, directory = api.configure(given), RunDirectory(path)
    if not directory.config.exists():
        api.run(config)
        return
    before = {k: v for k, v in read_yaml(directory.config).items() if k != "data_fingerprint"}
    if api.configure(before).hash() != config.hash():
        raise UserError(f"{path} holds a run with other options: choose another --out, or remove it")
    if not directory.summary.exists():
        api.resume(path)
