"""How a round's time and memory depend on the number of registered clients: `python -m benchmarks.scale`.

A small network on 64 numbers a row; clients take their rows from one common pool, so that a million of them fit.
Every measurement is a process of its own. The picture goes to docs/images/scale.png.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.arguments import count
from benchmarks.tables import median, save, show
from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.core.progress import Meter
from pa3dfl.core.tree import Tree
from pa3dfl.data import FederatedData, Splits
from pa3dfl.engines import engine_of
from pa3dfl.federation.federation import Federation
from pa3dfl.federation.state import Plan
from pa3dfl.methods.pa3dfl.method import Pa3dFL
from pa3dfl.methods.problem import Client, LocalTraining, Task
from pa3dfl.models import Model
from pa3dfl.runs.format import RunDirectory

ROOT = Path(__file__).parent.parent
POOL, ROWS, FEATURES, CLASSES = 10_000, 20, 64, 10
CPU = torch.device("cpu")
# On a machine that is shared, seconds of computing on one thread tell more than those of the wall clock.
clock = time.process_time if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter


class Windows(Sequence[np.ndarray]):
    """Rows of each client: a window on the pool."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, i: Any) -> Any:
        if i >= self.clients:
            raise IndexError(i)
        return np.arange(7 * i, 7 * i + ROWS) % POOL


def small(width: float, num_classes: int = CLASSES) -> nn.Module:
    hidden = int(32 * width)
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 10))


def task_of(method: methods.Method, clients: int) -> Task:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(POOL, FEATURES, generator=g), torch.randint(0, CLASSES, (POOL,), generator=g)
    splits = Splits(Windows(clients), 0)
    data = FederatedData(x, y, splits, CLASSES, None, None, False)
    p_min, whole = Fraction(1, 4), Fraction(1)
    model = Model(small, "small", (FEATURES,), CLASSES, method.full_features)
    everybody = [Client(i, whole, whole, splits.trained(i)) for i in range(clients)]
    local = LocalTraining(1, 10, 0.05, 0.998, 5e-4, 10.0)
    return Task(model, p_min, 0, CPU, data, everybody, local)


spent = [0.0]
"""Seconds on the server's side: generating what is sent, and learning from what comes back."""


@dataclasses.dataclass(frozen=True)
class Timed(Pa3dFL):
    def download(self, *args: Any) -> list[Tree]:
        started = clock()
        done = super().download(*args)
        spent[0] += clock() - started
        return done

    def aggregate(self, *args: Any) -> Tree:
        started = clock()
        done = super().aggregate(*args)
        spent[0] += clock() - started
        return done


def measure(name: str, clients: int, per_round: int, rounds: int, threads: int) -> None:
    """In a process of its own: seconds and resident memory after every round, as one line of JSON."""
    torch.set_num_threads(threads)
    method = Timed(embedding=16, hidden=16) if name == "pa3dfl" else methods.find(name)()
    plan = Plan(rounds + 1, min(per_round, clients), 50, 1.0, "accuracy", 10**6, eval_clients=100)
    seconds, server, memory = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        task = task_of(method, clients)
        made = Federation(method, task, engine_of("auto", CPU, threads), plan, RunDirectory(Path(folder)), name)
        state, meter = made.start(), Meter(name, 1, 1, 1, 1)
        for rnd in range(1, rounds + 1):
            spent[0], started = 0.0, clock()
            made.round(state, meter)
            if not plan.evaluates(rnd):
                seconds.append(clock() - started)
                server.append(spent[0])
            memory.append(resident_mb())
    print(json.dumps({"seconds": seconds, "server": server, "memory_mb": memory}), flush=True)


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def play(name: str, clients: int, args: argparse.Namespace, rounds: int) -> dict[str, Any]:
    given = [name, str(clients), str(args.per_round), str(rounds), str(args.threads)]
    command = [sys.executable, "-m", "benchmarks.scale", "--measure", *given]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "BENCH_CLOCK": args.clock}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"{name} among {clients:,} clients ended with code {done.returncode}: what it said is above")
    result = json.loads(done.stdout.splitlines()[-1])
    memory = result["memory_mb"]
    # The first rounds fill the allocator and the caches; what comes later would be a leak.
    early = max(memory[: max(1, len(memory) // 10)])
    return {
        "method": name, "registered": clients, "seconds": median(result["seconds"][1:] or result["seconds"]),
        "server": median(result["server"][1:] or result["server"]), "memory_mb": memory[-1],
        "growth": max(memory) / early - 1, "rounds": rounds,
    }  # fmt: skip


def draw(results: list[dict[str, Any]], path: Path, per_round: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    lines = (("fedavg", "seconds", "FedAvg", "o-"), ("pa3dfl", "seconds", "Pa3dFL", "s-"),
             ("pa3dfl", "server", "of which on the server", "s:"))  # fmt: skip
    for method, what, label, style in lines:
        mine = [r for r in results if r["method"] == method]
        axes.plot([r["registered"] for r in mine], [r[what] for r in mine], style, label=label)
    axes.set(xscale="log", yscale="log", xlabel="registered clients", ylabel="seconds a round")
    axes.set_title(f"{per_round:,} clients a round")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.scale", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="few rounds and clients: does everything run?")
    parser.add_argument("--per-round", type=count, default=1000)
    parser.add_argument("--registered", type=count, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--rounds", type=count, default=100, help="of FedAvg with most clients; a few elsewhere")
    parser.add_argument("--threads", type=count, default=os.cpu_count() or 1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine that is shared")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench" / "scale.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "images" / "scale.png")
    names = ("METHOD", "REGISTERED", "PER_ROUND", "ROUNDS", "THREADS")
    parser.add_argument("--measure", nargs=5, metavar=names, help="one measurement, in this process")
    args = parser.parse_args()
    if args.measure:
        name, *sizes = args.measure
        try:
            measure(name, *map(count, sizes))
        except (UserError, argparse.ArgumentTypeError) as e:
            parser.error(str(e))
        return
    if args.short:
        args.per_round, args.rounds, args.registered = 100, 10, [10**3, 10**4, 10**5]
        args.picture = args.out.with_suffix(".png")
    results = []
    for clients in args.registered:
        for name in ("fedavg", "pa3dfl"):
            long = name == "fedavg" and clients == max(args.registered)
            results.append(play(name, clients, args, args.rounds if long else min(args.rounds, 3)))
            print(results[-1], file=sys.stderr, flush=True)
    show(f"{args.per_round:,} clients a round", results)
    save(args.out, "scale", {"per_round": args.per_round, "threads": args.threads, "clock": args.clock}, results)
    draw(results, args.picture, args.per_round)


if __name__ == "__main__":
    main()
