"""How close the GPU engine comes to the hardware: `python -m benchmarks.gpu [--out FILE.json]`.

All rows of a table are measured in one run on one card. A step is one batch of every one of 20 clients at Hetero
widths: `ms_per_step` is that of a round's steps alone, `training` adds downloads, data and results, `round` aggregation
and the hyper-network. "Limit" is one plain model of full width that takes the 20 batches as a single one, as a CUDA
graph. Data are random bytes of the right shapes: accuracy is not the question here.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from pa3dfl import api, methods
from pa3dfl.data import Arrays
from pa3dfl.engines import Round, local
from pa3dfl.engines.captured import Captured
from pa3dfl.engines.recorder import Recorder
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods.pa3dfl import Pa3dFL, hypernetwork, layout
from pa3dfl.task import Task
from pa3dfl.tree import Tree, count, nbytes, put

COHORT, BATCH = 20, 50
CASES = {  # data, model, rows of each client in all, shape, classes
    "fashion": ("fashion-mnist", "cnn-fashion", 600, (1, 28, 28), 10),
    "cifar100": ("cifar100", "cnn-cifar100", 500, (3, 32, 32), 100),
    "resnet": ("cifar10", "resnet18-gn", 500, (3, 32, 32), 10),
}


def make(case: str, name: str, precision: str) -> tuple[Any, Task]:
    data, model, rows, shape, classes = CASES[case]
    rng = np.random.default_rng(0)
    arrays = Arrays(
        rng.integers(0, 256, (100 * rows, *shape), dtype=np.uint8), rng.integers(0, classes, 100 * rows), classes
    )
    config = api.configure({
        "data": data, "model": model, "method": name, "device": "cuda", "precision": precision, "partition": "iid",
    })  # fmt: skip
    api.set_arithmetic(config)
    method = api.make_method(config)
    return method, api.make_task(config, method, arrays)


def timed(work: Callable[..., Any], repeats: int, prepare: Callable[[], tuple[Any, ...]] = lambda: ()) -> float:
    """Median seconds of `work`, after one run of it that is not counted; what `prepare` makes for it is not, either."""
    seconds = []
    for _ in range(repeats + 1):
        prepared = prepare()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work(*prepared)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
        del prepared  # before the next are made: they may fill the card
    return statistics.median(seconds[1:])


def start(method: Any, task: Task) -> Tree:
    return {k: v.to(task.device, task.dtype) for k, v in method.init_server(task).items()}


def cohort(task: Task) -> list[Any]:
    """Every fifth client by capacity: the widths of a typical round."""
    by_capacity = sorted(task.clients, key=lambda c: c.r)
    return sorted(by_capacity[4::5], key=lambda c: c.id)


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
            lambda: many.evaluate(Round(method, task, server, {}, task.clients, 1), "accuracy"), 1
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
    left = list(engine._programs)
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
            program.recorder.follow()
            program.todo.extend(replays)
        for _ in range(max(len(replays) for _, replays in programs)):
            for program, _ in programs:
                program.advance()
        for program, _ in programs:
            program.recorder.join()
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

        recorder = Recorder(task.device)
        replay = recorder.record(step, step)

        def many(recorder: Recorder = recorder, replay: Callable[[], None] = replay) -> None:
            with recorder.running():
                for _ in range(50):
                    replay()
            recorder.join()

        times[layout_name] = 1e3 * timed(many, repeats) / 50
    return {"case": case, "precision": precision, "limit_ms": min(times.values()), "limit_by_layout_ms": times}


def generation(precision: str) -> dict[str, Any]:
    """The hyper-network of ResNet-18 for 20 clients: generation and update."""
    method, task = make("resnet", "pa3dfl", precision)
    assert isinstance(method, Pa3dFL)
    hn, parts, chosen = hypernetwork(method, task), layout(method, task), cohort(task)
    tree = {k: v.to(task.device) for k, v in hn.init(len(task.clients), 0).items()}
    shapes = [parts.v_shapes(c.width) | put("head.", parts.head) for c in chosen]
    ids = [c.id for c in chosen]
    before: list[int] = []

    def turned() -> tuple[()]:
        """The same clients in another order: plans that were made for a cohort are of no use to the next."""
        shapes.append(shapes.pop(0))
        ids.append(ids.pop(0))
        return ()

    def trained() -> tuple[list[Tree]]:
        """A little more than clients are given."""
        turned()
        made = [{k: v + 1e-3 for k, v in t.items()} for t in hn.generate(tree, ids, shapes)]
        turned()
        made.append(made.pop(0))
        gc.collect()
        before.append(torch.cuda.memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        return (made,)

    generate = timed(lambda: hn.generate(tree, ids, shapes), 5, turned)
    clients = sum(map(nbytes, hn.generate(tree, ids, shapes)))
    update = timed(lambda made: hn.update(tree, ids, made), 5, trained)
    beyond = torch.cuda.max_memory_allocated() - before[-1]
    return {
        "precision": precision, "parameters": count(tree), "generate_ms": 1e3 * generate, "update_ms": 1e3 * update,
        "beyond_gib": beyond / 2**30, "parameters_gib": nbytes(tree) / 2**30,
        "clients_gib": clients / 2**30,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="fashion,cifar100,resnet", help="which of them")
    parser.add_argument("--methods", default="pa3dfl,heterofl,fedavg", help="which methods, or all")
    parser.add_argument("--precisions", default="tf32", help="such as fp32,tf32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-eager", action="store_true", help="leave out the sequential loop")
    parser.add_argument("--brief", action="store_true", help="leave out one client at a time and evaluation too")
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu needs a CUDA GPU; `make bench` is for CPUs")
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    names = list(methods.registry()) if args.methods == "all" else args.methods.split(",")
    for case in args.cases.split(","):
        for precision in args.precisions.split(","):
            at_best = limit(case, precision, args.repeats)
            print(at_best, flush=True)
            results["rows"].append(at_best)
            for name in names:
                row = rounds(case, name, precision, not (args.no_eager or args.brief), args.brief, args.repeats)
                row["of_limit"] = row["ms_per_step"] / at_best["limit_ms"]
                print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
                results["rows"].append(row)
                if args.out:
                    args.out.write_text(json.dumps(results, indent=1) + "\n")
    if "resnet" in args.cases:
        results["hypernetwork"] = generation(args.precisions.split(",")[-1])
        print(results["hypernetwork"], flush=True)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
