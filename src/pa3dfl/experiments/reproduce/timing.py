"""Estimates the time of a cell from rounds that were run."""

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pa3dfl.core import machine
from pa3dfl.core.options.config import Config
from pa3dfl.experiments import api
from pa3dfl.experiments.reproduce import records
from pa3dfl.federation.federation import Federation
from pa3dfl.methods import assembly
from pa3dfl.methods.problem import Client
from pa3dfl.runs.format import RunDirectory

PROBES = 4
"""How many clients the measured rounds have."""

Pace = Mapping[str, float]


class Probe(Federation):
    """A federation with few clients, whose capacities are spread evenly, to represent all."""

    def sample(self, rnd: int) -> list[Client]:
        ranked = sorted(self.members(), key=lambda c: (c.r, c.id))
        n = min(PROBES, len(ranked))
        chosen = [ranked[(2 * i + 1) * len(ranked) // (2 * n)] for i in range(n)]
        return sorted(chosen, key=lambda c: c.id)

    def tested(self) -> list[Client]:
        return self.sample(0)


def measure(config: Config) -> dict[str, float]:
    """Seconds for one client: an epoch of training, and a test without the training before it."""
    with tempfile.TemporaryDirectory() as folder:
        short = dataclasses.replace(
            config, rounds=3, eval_every=3, checkpoint_every=3, epochs=1, patience=1.0, eval_clients=0, out=folder
        )
        directory = RunDirectory(Path(folder))
        built = api.build(short, assembly.arrays_of(config), directory)
        probe = Probe(built.method, built.task, built.engine, built.plan, directory, f"measuring {config.method}")
        probe.run(probe.start())
        rounds = [json.loads(line) for line in directory.rounds.read_text().splitlines()]
    n = len(probe.sample(0))
    # The first round includes warm-up.
    epoch = rounds[1]["seconds"] / n
    test = max(0.0, rounds[2]["seconds"] - rounds[1]["seconds"]) / n
    return {"epoch": epoch, "test": max(0.0, test - epoch) if trains_to_test(config) else test}


def trains_to_test(config: Config) -> bool:
    """Whether a test begins with local training."""
    rule = getattr(config, "tested", None)
    return rule == "adapted" if rule is not None else getattr(assembly.make_method(config), "trains_to_test", False)


def estimate(config: Config, pace: Pace, clients: int, done: int = 0) -> float:
    """Seconds until the config's last round."""
    rounds, every = config.rounds or 0, config.eval_every
    tests = sum(r % every == 0 or r == rounds for r in range(done + 1, rounds + 1))
    tested = min(config.eval_clients, clients) if config.eval_clients else clients
    training = pace["epoch"] * config.epochs
    test = tested * (pace["test"] + (training if trains_to_test(config) else 0.0))
    return (rounds - done) * min(config.per_round, clients) * training + tests * test


class Paces:
    """Measurements on this machine, kept beside the results so that they are made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "paces"

    def of(self, config: Config) -> Pace:
        name = "".join(c if c.isalnum() else "-" for c in machine.processor(config.device).lower())
        name = f"{name[:60]}-{config.threads}-{config.precision}"
        known: dict[str, Any] = records.read(self.folder / f"{name}.json") or {}
        case = f"{Path(config.data).stem} {config.model} {config.setting} {config.method} batch {config.batch}"
        if case not in known:
            pace = measure(config)
            # Keep what other processes have written meanwhile.
            known = (records.read(self.folder / f"{name}.json") or {}) | {case: pace}
            with contextlib.suppress(OSError):
                records.write(known, self.folder, name)
        found: Mapping[str, float] = known[case]
        return found
