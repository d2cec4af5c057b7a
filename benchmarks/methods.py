"""What a method's local work costs beside FedAvg's: `python -m benchmarks.methods [--model cnn-cifar100]`.

One client of full width trains on the sequential engine with one thread, all methods in turn, several times; the
median of the processor's seconds for each sample is shown (not of the clock's: other processes do not disturb it much).
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.arguments import count
from benchmarks.tables import median, save, show
from pa3dfl import methods
from pa3dfl.data import Arrays
from pa3dfl.engines import local
from pa3dfl.methods import assembly

CASES = {"cnn-fashion": ((1, 28, 28), 10), "cnn-cifar100": ((3, 32, 32), 100), "resnet18-gn": ((3, 32, 32), 10)}
ROWS = 250
REASONS = {
    "ditto": "trains two models",
    "fjord": "a second, narrower pass in every step",
    "pfedgate": "a gate, and a mask over all parameters in every step",
    "pa3dfl": "recovers its weights in every step, has two heads",
    "flanc": "composes its weights in every step",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cnn-fashion", choices=CASES)
    parser.add_argument("--repeats", type=count, default=7)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/methods.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    work = {name: prepared(name, args.model) for name in methods.registry()}
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(args.repeats + 1):
        for name, (method, task, start, fixed) in work.items():
            begun = time.process_time()
            local.train(method, task, task.clients[0], start, fixed, 1, "train")
            if turn:  # the first is for the libraries to get ready
                times[name].append((time.process_time() - begun) / task.clients[0].n)
    own = median(times["fedavg"])
    rows = [
        {
            "method": name,
            "ms per sample": 1e3 * median(t),
            "times FedAvg": median(t) / own,
            "why": REASONS.get(name, ""),
        }
        for name, t in sorted(times.items(), key=lambda kv: median(kv[1]))
    ]
    show(f"local training, {args.model}, width 1, batch 50", rows)
    save(args.out, "methods", {"model": args.model, "repeats": args.repeats}, rows)


def prepared(name: str, model: str) -> tuple[Any, Any, Any, Any]:
    shape, classes = CASES[model]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2 * ROWS * 10 // 8, *shape), dtype=np.uint8)
    config = assembly.configure({
        "method": name, "model": model, "data": "fashion-mnist", "clients": 2, "setting": "ideal", "epochs": 1,
        "partition": "iid", "augment": False, "device": "cpu", "engine": "sequential", "threads": 1,
    })  # fmt: skip
    method = assembly.make_method(config)
    task = assembly.make_task(config, method, Arrays(x, rng.integers(0, classes, len(x)), classes))
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    client = task.clients[0]
    [down] = method.download(task, server, [client], 1)
    return method, task, *method.begin(task, client, down, method.init_client(task, client))


if __name__ == "__main__":
    main()
