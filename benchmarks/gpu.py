"""How close the GPU engine comes to the hardware: `python -m benchmarks.gpu [--out FILE.json]`.

All rows of a table are measured in one run on one card. A step is one batch of every one of 20 clients at Hetero
widths: `ms_per_step` is that of a round's steps alone, `training` adds downloads, data and results, `round` aggregation
and the hyper-network. "Limit" is one plain model of full width that takes the 20 batches as a single one, as a CUDA
graph. Data are random bytes of the right shapes: accuracy is not the question here. At the end comes a contest of whole
FedAvg rounds with other simulators (`contest.py`), as far as they are there.
"""

import argparse
import dataclasses
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.arguments import count
from benchmarks.contest import LIMIT, PEERS, ROOT, Contest, summary
from benchmarks.hypernetwork import generation
from benchmarks.tables import save, show
from benchmarks.tasks import BATCH, CASES, COHORT, cohort, make, start, timed
from benchmarks.workload import Work
from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.engines import Round, local
from pa3dfl.engines.cuda.captured import Captured
from pa3dfl.engines.cuda.graphs import GraphStream
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods.problem import Task

Row = dict[str, Any]
NONE = float("nan")
SELF = {
    "pa3dfl": ("library", "auto", "fast", "tf32"),
    "pa3dfl, float32": ("library", "auto", "fast", "fp32"),
    "sequential loop": ("library", "sequential", "fast", "tf32"),
    LIMIT: ("limit", "tf32"),
}


def rounds(case: str, name: str, precision: str, eager: bool, brief: bool, repeats: int) -> dict[str, Any]:
    method, task = make(case, name, precision)
    server, chosen = start(method, task), cohort(task)
    steps = task.local.epochs * -(-chosen[0].n // BATCH)
    record: dict[str, Any] = {
        "case": case,
        "method": name,
        "precision": precision,
        "clients": len(chosen),
        "steps": steps,
    }

    def train(engine: Any) -> Callable[[], Any]:
        return lambda: engine.train(Round(method, task, server, {}, chosen, 1))

    many = Captured()
    record["training_s"] = timed(train(many), repeats)
    record["training_ms_per_step"] = 1e3 * record["training_s"] / steps
    alone, launching = steps_alone(many, method, task, server, chosen, repeats)
    record["ms_per_step"], record["launching_ms_per_step"] = 1e3 * alone / steps, 1e3 * launching / steps

    def whole() -> None:
        updates = many.train(Round(method, task, server, {}, chosen, 1))
        method.aggregate(task, server, updates, 1)

    record["round_s"] = timed(whole, repeats)
    record["round_in_steps"] = record["round_s"] / alone
    if not brief:
        record["one_at_a_time_ms_per_step"] = 1e3 * timed(train(Captured(at_once=1)), 1) / steps
        record["evaluation_s"] = timed(
            lambda: many.evaluate(Round(method, task, server, {}, task.clients, 1), ["adapted"]), 1
        )
        record["evaluation_in_rounds"] = record["evaluation_s"] / record["round_s"]
    if eager:
        record["eager_ms_per_step"] = 1e3 * timed(train(Sequential()), 1) / steps
        record["times_eager"] = record["eager_ms_per_step"] / record["ms_per_step"]
    return record


def steps_alone(
    engine: Captured, method: Any, task: Task, server: Tree, chosen: list[Any], repeats: int
) -> tuple[float, float]:
    """The replays of all steps of a round, on all streams, and nothing else; and how long the host launches them."""
    engine.train(Round(method, task, server, {}, chosen, 1))
    left = list(engine.streams.programs)
    programs = []
    for client in chosen:
        program = next(p for p in left if p.width == client.width)
        left.remove(program)
        sizes = local.order(task, client, 1, "train")[2]
        programs.append((program, program._replays(sizes, [{}] * len(sizes))))

    launching: list[float] = []

    def replay() -> None:
        begun = time.perf_counter()
        for program, replays in programs:
            program.rows.copy_(program.first)
            program.graphs.follow()
            program.todo.extend(replays)
        for _ in range(max(len(replays) for _, replays in programs)):
            for program, _ in programs:
                program.advance()
        for program, _ in programs:
            program.graphs.join()
        launching.append(time.perf_counter() - begun)

    return timed(replay, repeats), statistics.median(launching)


def limit(case: str, precision: str, repeats: int) -> dict[str, Any]:
    """One plain model of full width, 20 batches as one, forward, backward and a plain step, as a graph."""
    _, task = make(case, "fedavg", precision)
    model = task.model.factory(1.0, input_shape=task.model.input_shape, num_classes=task.model.classes).cuda()
    x = torch.randn(COHORT * BATCH, *task.model.input_shape, device="cuda")
    y = torch.randint(task.model.classes, (COHORT * BATCH,), device="cuda")
    params = list(model.parameters())
    times = {}
    for layout_name, form in (("plain", torch.contiguous_format), ("channels-last", torch.channels_last)):
        model.to(memory_format=form)
        given = x.to(memory_format=form)

        def step(given: torch.Tensor = given) -> None:
            gradients = torch.autograd.grad(F.cross_entropy(model(given), y), params)
            with torch.no_grad():
                torch._foreach_add_(params, gradients, alpha=-1e-4)

        graphs = GraphStream(task.device)
        replay = graphs.capture(step, step)

        def many(graphs: GraphStream = graphs, replay: Callable[[], None] = replay) -> None:
            with graphs.running():
                for _ in range(50):
                    replay()
            graphs.join()

        times[layout_name] = 1e3 * timed(many, repeats) / 50
    return {"case": case, "precision": precision, "limit_ms": min(times.values()), "limit_by_layout_ms": times}


def in_steps(results: list[Row]) -> list[Row]:
    """Milliseconds for one step of all clients."""
    return [
        {
            "": f"{r['case']}, {r['method']}, {r['precision']}",
            "eager loop": r.get("eager_ms_per_step", NONE),
            "one at a time": r.get("one_at_a_time_ms_per_step", NONE),
            "side by side": r["ms_per_step"],
            "times the eager loop": r.get("times_eager", NONE),
            "limit": r["limit_ms"],
            "of the limit": r["of_limit"],
        }
        for r in results
    ]


def in_rounds(results: list[Row]) -> list[Row]:
    """Milliseconds for a round."""
    return [
        {
            "": f"{r['case']}, {r['method']}, {r['precision']}",
            "steps alone": r["ms_per_step"] * r["steps"],
            "with downloads, data, results": 1e3 * r["training_s"],
            "whole round": 1e3 * r["round_s"],
            "round / steps": r["round_in_steps"],
            "evaluation, rounds": r.get("evaluation_in_rounds", NONE),
        }
        for r in results
    ]


def main() -> None:
    args = arguments()
    measured: dict[str, Any] = {"rows": []}
    try:
        measure(args, measured)
    finally:  # what is there when it ends early, too
        if any(measured.values()):
            settings = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "repeats": args.repeats}
            save(args.out, "gpu", settings, measured)


def measure(args: argparse.Namespace, measured: dict[str, Any]) -> None:
    names = list(methods.registry()) if args.methods == "all" else args.methods.split(",")
    results: list[Row] = measured["rows"]
    for case, precision in product(args.cases, args.precisions):
        at_best = limit(case, precision, args.repeats)
        print(at_best, file=sys.stderr, flush=True)
        for name in names:
            row = rounds(case, name, precision, not (args.no_eager or args.brief), args.brief, args.repeats)
            row |= {"limit_ms": at_best["limit_ms"], "of_limit": row["ms_per_step"] / at_best["limit_ms"]}
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, file=sys.stderr, flush=True)
            results.append(row)
    if results:
        show("one step of 20 clients, milliseconds", in_steps(results))
        show("a round, milliseconds", in_rounds(results))
    if "resnet" in args.cases:
        measured["hypernetwork"] = generation(args.precisions[-1])
        show("the hyper-network of ResNet18, 20 clients", [measured["hypernetwork"]])
    if not args.no_peers:
        gc.collect()
        torch.cuda.empty_cache()  # the card is the contestants' now
        work = Work(width=1.0, rows=480, rounds=3, threads=os.cpu_count() or 1, device="cuda")
        (contest,) = Contest(SELF, args.peers).hold([*SELF, *PEERS], [work], args.repeats)
        show("FedAvg at full width: samples a second, medians", summary(contest))
        measured["contest"] = {"work": dataclasses.asdict(work), "results": contest}


def arguments() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name for name in text.split(",") if name]

    parser = argparse.ArgumentParser("benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=names, default=list(CASES), help="which of them, with commas")
    parser.add_argument("--methods", default="pa3dfl,heterofl,fedavg", help="which methods, or all")
    parser.add_argument("--precisions", type=names, default=["tf32"], help="such as fp32,tf32")
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--no-eager", action="store_true", help="leave out the sequential loop")
    parser.add_argument("--brief", action="store_true", help="leave out one client at a time and evaluation too")
    parser.add_argument("--no-peers", action="store_true", help="leave out the contest with other simulators")
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-peers", help="their environment, or their packages")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench" / "gpu.json")
    args = parser.parse_args()
    if unknown := set(args.cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA GPU; `make bench` is for CPUs")
    return args


if __name__ == "__main__":
    try:
        main()
    except UserError as e:
        sys.exit(f"benchmarks.gpu: {e}")
