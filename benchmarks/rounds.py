"""Whole rounds on a CPU beside their limit: `python -m benchmarks.rounds [--cases cifar100] [--methods pa3dfl]`.

A round is that of the paper's Hetero setting: 20 clients download, train five epochs at batch 50, and the server
aggregates (for Pa3dFL the hyper-network generates and learns). The limit is as many samples through plain networks of
the same widths as Pa3dFL's clients at batch 500, in the same threads, longest first: no method, no server, images
normalised beforehand and not augmented. All take turns in one process; the first two rounds, in which most steps are
recorded, do not count.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.arguments import count
from benchmarks.tables import median, save, show
from benchmarks.tasks import CASES, COHORT, cohort, make, start
from pa3dfl import methods
from pa3dfl.engines import Round
from pa3dfl.engines.cpu.threaded import Threaded
from pa3dfl.engines.guard import Guard
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Client, Task
from pa3dfl.models import factory_of

LIMIT, BATCH, EPOCHS, WARM = "limit", 500, 5, 2
CNNS = ("fashion", "cifar100")
Seconds = tuple[float, float]  # by the clock, and of the processor


def of_method(case: str, name: str, precision: str, epochs: int, threads: int) -> Callable[[], Any]:
    method, task = made(case, name, precision, epochs)
    server, chosen, engine, guard = start(method, task), cohort(task), Threaded(threads), Guard(method, task)
    private: dict[int, Any] = {}
    number = 0

    def play() -> None:
        nonlocal server, number
        number += 1
        work = Round(method, task, server, private, chosen, number)
        good, bad = guard.sift(engine.train(work), work.shapes)
        assert not bad, bad
        private.update({u.client.id: u.private for u in good if u.private})
        server = method.aggregate(task, server, good, number)

    return play


def of_limit(case: str, precision: str, epochs: int, threads: int) -> Callable[[], Any]:
    _, task = made(case, "pa3dfl", precision, epochs)
    engine, chosen = Threaded(threads), cohort(task)
    samples = [c.n * task.local.epochs for c in chosen]
    x, y = task.data.batch(torch.arange(max(c.n for c in chosen)), None, task.dtype)

    def one(i: int) -> float:
        return plain(task, chosen[i], CASES[case][1], x, y, samples[i])

    return lambda: engine.each(one, chosen, lambda: None)


def made(case: str, name: str, precision: str, epochs: int) -> tuple[Method, Task]:
    method, task = make(case, name, precision, "cpu")
    return method, dataclasses.replace(task, local=dataclasses.replace(task.local, epochs=epochs))


def plain(task: Task, client: Client, model: str, x: torch.Tensor, y: torch.Tensor, samples: int) -> float:
    network = factory_of(model)(float(client.width), task.data.input_shape, task.data.classes)
    network = network.to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(network.parameters(), task.local.lr, fused=True)
    chosen = torch.arange(samples) % len(x)
    for rows in chosen[torch.randperm(samples)].split(BATCH):
        batch = x.index_select(0, rows).contiguous(memory_format=torch.channels_last)
        with task.arithmetic():
            loss = F.cross_entropy(network(batch), y[rows])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return float(loss.detach())


def timed(play: Callable[[], Any]) -> Seconds:
    clock, processor = time.perf_counter(), time.process_time()
    play()
    return time.perf_counter() - clock, time.process_time() - processor


def contest(
    case: str, precision: str, names: Sequence[str], repeats: int, epochs: int, threads: int
) -> dict[str, list[Seconds]]:
    players = {LIMIT: of_limit(case, precision, epochs, threads)}
    players |= {name: of_method(case, name, precision, epochs, threads) for name in names}
    for play in players.values():
        for _ in range(WARM):
            play()
    times: dict[str, list[Seconds]] = {name: [] for name in players}
    for _ in range(repeats):
        for name, play in players.items():
            times[name].append(timed(play))
    return times


def summary(times: dict[str, list[Seconds]]) -> list[dict[str, Any]]:
    """Medians; ratios are medians of those within each turn."""
    limit = times[LIMIT]
    return [
        {
            "who": name,
            "seconds": median([clock for clock, _ in own]),
            "processor's seconds": median([processor for _, processor in own]),
            "times the limit": median([a / b for (a, _), (b, _) in zip(own, limit, strict=True)]),
            "by the processor's": median([a / b for (_, a), (_, b) in zip(own, limit, strict=True)]),
        }
        for name, own in times.items()
    ]


def measured(
    cases: Sequence[str], names: Sequence[str], precisions: Sequence[str], repeats: int, epochs: int, threads: int
) -> dict[str, dict[str, list[Seconds]]]:
    """A table for each case and precision; returns all numbers behind them."""
    results = {}
    for case in cases:
        for precision in precisions:
            times = results[f"{case}, {precision}"] = contest(case, precision, names, repeats, epochs, threads)
            show(f"{case}, {precision}: a round of {COHORT} clients, medians of {repeats}", summary(times))
    return results


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.rounds", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=CNNS)
    parser.add_argument("--methods", nargs="+", choices=list(methods.registry()), default=["pa3dfl"])
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--repeats", type=count, default=5)
    parser.add_argument("--epochs", type=count, default=EPOCHS)
    parser.add_argument("--threads", type=count, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/bench/rounds.json"))
    args = parser.parse_args()
    results = measured(args.cases, args.methods, args.precisions, args.repeats, args.epochs, args.threads)
    settings = {k: getattr(args, k) for k in ("repeats", "epochs", "threads")} | {"torch": torch.__version__}
    save(args.out, "rounds", settings, results)


if __name__ == "__main__":
    main()
