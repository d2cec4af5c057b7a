"""This library's rounds as in `pa3dfl run`: sampling, training, checks of updates, aggregation.

`python -m benchmarks.library JSON ENGINE LAYOUT PRECISION`
"""

import dataclasses
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.workload import Work, asked, timed
from pa3dfl.core.progress import Meter
from pa3dfl.data import Arrays
from pa3dfl.experiments import api
from pa3dfl.federation.federation import Federation
from pa3dfl.methods import assembly
from pa3dfl.runs.format import RunDirectory


def federation(work: Work, engine: str, layout: str, precision: str, folder: Path) -> Federation:
    each = work.rows * 10 // 8  # two tenths of a client's rows are for validation and test
    rng = np.random.default_rng(0)
    n = work.clients * each
    x = rng.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8)
    arrays = Arrays(x, rng.integers(0, 10, n), 10, np.repeat(np.arange(work.clients), each))
    config = assembly.configure({
        "method": "fedavg", "model": "cnn-fashion", "partition": "natural", "clients": work.clients,
        "per_round": work.clients, "setting": f"levels:{work.width**2}", "epochs": work.epochs, "batch": work.batch,
        "lr": work.lr, "rounds": work.rounds + 2, "eval_every": 10**6, "checkpoint_every": 10**6, "augment": False,
        "engine": engine, "threads": work.threads, "precision": precision, "device": work.device, "clip_norm": 0,
        "weight_decay": 0, "data": "bench.npz", "out": str(folder),
    })  # fmt: skip
    made = api.build(config, arrays, RunDirectory(folder))
    if layout == "plain":
        data = dataclasses.replace(made.task.data, layout=torch.contiguous_format)
        made.task = dataclasses.replace(made.task, data=data)
    return made


def main() -> None:
    work = asked()
    with tempfile.TemporaryDirectory() as folder:
        made = federation(work, *sys.argv[2:5], Path(folder))
        assert all(c.n == work.rows and c.width == work.width for c in made.task.clients)
        state, meter = made.start(), Meter("bench", 1, lambda rounds: rounds, lambda rnd: rnd)
        timed(work, lambda _: made.round(state, meter))


if __name__ == "__main__":
    main()
