"""Several methods and seeds on equal terms: the same task, split and rounds for all; finished runs are not repeated."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config, read_yaml
from pa3dfl.experiments import api
from pa3dfl.federation.federation import Follower
from pa3dfl.methods import assembly
from pa3dfl.runs.format import RunDirectory

# The demo's federation: clients differ in capacity and in what they own.
QUICK = {
    "data": "fashion-mnist-10k", "partition": "classes", "classes_per_client": 3, "clients": 40, "per_round": 8,
    "rounds": 24, "epochs": 2, "eval_every": 8, "patience": 1, "methods": {"pa3dfl": {"hidden": 16}},
}  # fmt: skip

TERMS = (
    "preset", "rounds", "per_round", "epochs", "batch", "init", "lr", "lr_decay", "clip_norm", "weight_decay",
    "augment", "capacity_rule", "tested",
)  # fmt: skip


def compare(
    given: Mapping[str, Any], names: Sequence[str], seeds: Sequence[int], out: Path, followers: Sequence[Follower] = ()
) -> list[Path]:
    """Train what is missing under `out`; returns all run directories, method by method."""
    paths = []
    for name in names:
        for seed in seeds:
            path = out / f"{name.replace(':', '-')}-{seed}"
            complete(assembly.configure({**given, "method": name, "seed": seed, "out": str(path)}), followers)
            paths.append(path)
    return paths


def terms(path: Path) -> dict[str, Any]:
    """The options of a run: those that all methods have, and the method's own."""
    config = assembly.configure({k: v for k, v in read_yaml(path / "config.yaml").items() if k != "data_fingerprint"})
    return {"training": {k: getattr(config, k) for k in TERMS}, "options": dict(config.options)}


def equal_terms(records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Options that are equal for all records, and by method those that differ."""
    by_option = {k: {r["method"]: r["training"][k] for r in records} for k in TERMS}
    same = {k: next(iter(v.values())) for k, v in by_option.items() if len(set(v.values())) == 1}
    return same, {k: v for k, v in by_option.items() if k not in same}


def complete(config: Config, followers: Sequence[Follower] = ()) -> None:
    """Train the config's run, or continue it, or leave it if it is finished."""
    directory = begun(config)
    if directory is None:
        api.run(config, followers=followers)
    elif not directory.summary.exists():
        api.resume(directory.path, followers=followers)


def begun(config: Config) -> RunDirectory | None:
    """The run directory of this config if it exists; it must not hold another run."""
    directory = RunDirectory(Path(config.out or ""))
    if not directory.config.exists():
        return None
    before = {k: v for k, v in read_yaml(directory.config).items() if k != "data_fingerprint"}
    if assembly.configure(before).hash() != config.hash():
        raise UserError(f"{directory.path} holds a run with other options: choose another --out, or remove it")
    return directory
