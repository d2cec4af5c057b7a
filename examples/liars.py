"""How much do lies within the format cost, and what helps? Prints the table of docs/deploy.md.

    python examples/liars.py [METHOD…]

A share of the clients sends, in every round, what it was sent minus what it learned (sign flip), or ten times what it
learned. Shown is the mean test accuracy of the honest clients at the end, over two seeds.
Takes half an hour on a core.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from pa3dfl.data import load
from pa3dfl.engines.base import Round, Tick, silent
from pa3dfl.engines.sequential import Sequential
from pa3dfl.experiments import api
from pa3dfl.methods import Update, assembly
from pa3dfl.runs.format import RunDirectory

RUN = {
    "data": "fashion-mnist-10k", "clients": 20, "per_round": 10, "rounds": 12, "epochs": 2, "eval_every": 12,
    "partition": "dirichlet", "setting": "levels:1/16,1/64,1/256", "threads": 1, "device": "cpu", "patience": 1,
    "methods": {"pa3dfl": {"hidden": 16}},
}  # fmt: skip

LIES = (
    (0, 1.0, "none"), (2, -1.0, "10% sign flip"), (4, -1.0, "20% sign flip"), (2, 10.0, "10% × 10"),
    (4, 10.0, "20% × 10"),
)  # fmt: skip


SEEDS = (0, 1)


class Liars(Sequential):
    """The first clients lie: they multiply what they learned."""

    def __init__(self, liars: int, factor: float) -> None:
        self.liars, self.factor = liars, factor

    def train(self, work: Round, tick: Tick = silent) -> list[Update]:
        work = replace(work, sent={} if work.sent is None else work.sent)
        updates = super().train(work, tick)
        for update in updates:
            down = work.sent[update.client.id]
            if update.client.id < self.liars:
                for k in down.keys() & update.tree.keys():
                    update.tree[k] = down[k] + self.factor * (update.tree[k] - down[k])
        return updates


def accuracy(method: str, rule: str, liars: int, factor: float, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        config = assembly.configure(RUN | {"method": method, "robust": rule, "seed": seed, "out": folder})
        federation = api.build(config, load(config.data), RunDirectory(Path(folder)))
        federation.engine = Liars(liars, factor)
        state = federation.run(federation.start())
        honest = [s.test_accuracy for s in state.best.scores if s.client >= liars]
        return 100 * sum(honest) / len(honest)


def main(names: list[str]) -> None:
    rules = ("mean", "median", "trimmed", "clip")
    print("| method | liars | " + " | ".join(rules) + " |\n" + "|---" * (2 + len(rules)) + "|")
    for method in names:
        for liars, factor, what in LIES:
            row = [f"{fmean(accuracy(method, rule, liars, factor, seed) for seed in SEEDS):.1f}" for rule in rules]
            print(f"| {method} | {what} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["pa3dfl", "fedavg"])
