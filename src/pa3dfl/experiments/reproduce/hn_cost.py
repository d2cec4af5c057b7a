"""The time in which the hyper-network generates the parameters of 20 clients and learns from them."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pa3dfl import __version__
from pa3dfl.core import machine
from pa3dfl.core.options.capacity import capacities, width_of
from pa3dfl.core.randomness import generator
from pa3dfl.core.tree import Tree
from pa3dfl.experiments.reproduce import paper, records
from pa3dfl.experiments.reproduce.markdown import EMPTY, table
from pa3dfl.methods import assembly
from pa3dfl.methods.common.hypernetwork import HyperNetwork
from pa3dfl.methods.pa3dfl.method import HEAD, Pa3dFL, hypernetwork, layout
from pa3dfl.methods.problem import Problem

MODELS = {"cnn-cifar100": ((3, 32, 32), 100), "resnet18-gn": ((3, 32, 32), 10)}
DEPTHS = (1, 2, 3)
CLIENTS, SAMPLED, REPEATS = 100, 20, 2
LONG = 5.0
"""Seconds from which a measurement is not repeated."""

P_MIN = Fraction(1, 16)


def measure(name: str, device: torch.device, depths: Sequence[int] = DEPTHS) -> list[list[float]]:
    """Seconds of [generation, optimisation] by depth of a (64, 64, depth) encoder, then those of the processor.

    Medians, Hetero.
    """
    method = Pa3dFL(embedding=64, hidden=64)
    model = assembly.make_model(name, method, *MODELS[name], P_MIN)
    problem = Problem(model, P_MIN, 0, torch.device("cpu"))
    widths = [width_of(r, P_MIN) for r in capacities("hetero", CLIENTS, 0)]
    ids = list(range(0, CLIENTS, CLIENTS // SAMPLED))
    shapes = [layout(method, problem).personal_shapes(widths[i], HEAD) for i in ids]
    base = hypernetwork(method, problem)
    # Decoders are gigabytes and the same at every depth: they are made once.
    whole = {k: v.to(device) for k, v in base.init(CLIENTS, seed=0).items()}
    found = []
    for depth in depths:
        hn = replace(base, depth=depth)
        small = {k: v.to(device) for k, v in replace(hn, outputs={}).init(CLIENTS, seed=0).items() if k != "tau"}
        tree = {k: v for k, v in whole.items() if not k.startswith("encoder.")} | small
        found.append(_times(hn, tree, ids, shapes, device))
    return found


def _times(hn: HyperNetwork, tree: Tree, ids: list[int], shapes: list[Any], device: torch.device) -> list[float]:
    seconds: list[list[float]] = []
    for _ in range(REPEATS + 1):
        generating, trained = timed(partial(hn.generate, tree, ids, shapes), device)
        for own in trained:  # as after local training: a little away from what was generated
            for k, v in own.items():
                v += 1e-3 * torch.randn(v.shape, generator=generator(0, f"hn-cost:{k}")).to(device)
        learning, _ = timed(partial(hn.update, tree, ids, trained), device)
        seconds.append([a for pair in zip(generating, learning, strict=True) for a in pair])
        if generating[0] + learning[0] > LONG:  # to warm up and to repeat changes little
            break
    return [statistics.median(values) for values in zip(*(seconds[1:] or seconds), strict=True)]


def timed(work: Callable[[], Any], device: torch.device) -> tuple[tuple[float, float], Any]:
    """Seconds by the clock and of the processor, and the result."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    clock, processor = time.perf_counter(), time.process_time()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - clock, time.process_time() - processor), result


def needed(name: str) -> int:
    """Bytes of the decoders, nearly all of the network, and half as many for the generated parameters."""
    method = Pa3dFL(embedding=64, hidden=64)
    model = assembly.make_model(name, method, *MODELS[name], P_MIN)
    problem = Problem(model, P_MIN, 0, torch.device("cpu"))
    return int(1.5 * 4 * 65 * sum(out.numel for out in hypernetwork(method, problem).outputs.values()))


def free_bytes() -> int | None:
    """Of this computer's memory; None if unknown."""
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def run(results: Path, device_name: str, threads: int, say: Callable[[str], None]) -> Path:
    """Measure what is missing in this machine's record."""
    device = assembly.device_of(device_name)
    torch.set_num_threads(threads or torch.get_num_threads())
    where = machine.processor(device.type)
    name = "".join(c if c.isalnum() else "-" for c in where.lower())[:60]
    known = records.read(results / "hn-cost" / f"{name}.json") or {"seconds": {}}
    for model in MODELS:
        free = free_bytes()
        if model in known["seconds"]:
            continue
        if free is not None and free < needed(model):
            say(f"{model}'s hyper-network is not measured: it needs {needed(model) / 1e9:.0f} GB of memory")
            continue
        say(f"hn-cost: measuring {model}'s hyper-network")
        known["seconds"][model] = [[round(s, 5) for s in times] for times in measure(model, device)]
    about = {"device": where, "threads": torch.get_num_threads(), "commit": machine.commit(), "version": __version__}
    return records.write(about | {"seconds": known["seconds"]}, results / "hn-cost", name)


def section(results: Path) -> str:
    found = [r for path in sorted((results / "hn-cost").glob("*.json")) if (r := records.read(path))]
    rows = []
    for model in MODELS:
        rows.append([model, "paper", *_shown(paper.numbers()["hn_cost"][model])])
        for r in found:
            times = r["seconds"].get(model)
            rows.append([model, _where(r), *_shown(times)])
            if "NVIDIA" not in r["device"]:
                rows.append([model, "the same, of the processor", *_shown(times and [t[2:] for t in times])])
        if not found:
            rows.append([model, "ours", *_shown(None)])
    headers = ["model", "where", *(f"{d} layer" + "s" * (d > 1) for d in DEPTHS)]
    note = (
        "Seconds for generation / optimisation, 20 of 100 clients, Hetero, a (64, 64, layers) encoder. Those of the "
        "processor leave out what other programs took, and add up threads:"
    )
    return f"{note}\n\n" + table(headers, rows)


def _where(record: dict[str, Any]) -> str:
    threads: int = record["threads"]
    return f"{record['device']}, {threads} thread" + "s" * (threads > 1)


def _shown(times: list[list[float]] | None) -> list[str]:
    return [EMPTY] * len(DEPTHS) if not times else [f"{g:.3g} / {o:.3g}" for g, o, *_ in times]
