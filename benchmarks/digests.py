"""Digests of short runs, to show that a change of the code changes no result.

    python -m benchmarks.digests before.json            # write them
    python -m benchmarks.digests after.json before.json # write them and compare: exit code 1 where one differs

Three rounds of every method and ablation on a tiny task, with each engine that runs here. A digest is of all tensors of
the last checkpoint, of rounds.jsonl without its seconds, and of clients.csv. Equal bits hold on one machine only.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import pa3dfl
from pa3dfl import methods

ENGINES = {"sequential": 1, "threaded": 2, "flower": 1}
TASK: dict[str, Any] = {
    "model": "cnn-fashion", "clients": 6, "per_round": 4, "epochs": 2, "batch": 10, "lr": 0.05, "rounds": 3,
    "eval_every": 2, "setting": "levels:1,1/16,1/256", "device": "cpu", "patience": 9,
}  # fmt: skip


def digest(run: Path) -> str:
    found = hashlib.sha256()
    for line in (run / "rounds.jsonl").read_text().splitlines():
        found.update(json.dumps({k: v for k, v in json.loads(line).items() if k != "seconds"}).encode())
    found.update((run / "clients.csv").read_bytes())
    for file in sorted((run / "checkpoints").glob("*.safetensors")):
        for name, value in sorted(load_file(file).items()):
            found.update(f"{file.name} {name} {value.shape} {value.dtype}".encode() + value.tobytes())
    return found.hexdigest()[:16]


def data(path: Path) -> str:
    """Noisy copies of one random picture a class."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 4
    x = rng.integers(0, 256, (4, 1, 8, 8))[y] + rng.normal(0, 60, (240, 1, 8, 8))
    np.savez(path, x=np.clip(x, 0, 255).astype(np.uint8), y=y)
    return str(path)


def digests(names: list[str]) -> dict[str, str]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        task = TASK | {"data": data(Path(folder) / "tiny.npz")}
        for engine, threads in ENGINES.items():
            for name in names:
                out = Path(folder) / f"{name}-{engine}"
                own = {"hidden": 8} if name.startswith("pa3dfl") else {}
                pa3dfl.run(**task, **own, method=name, engine=engine, threads=threads, out=str(out))
                found[f"{name} {engine}"] = digest(out)
                print(f"{name} {engine} {found[f'{name} {engine}']}", flush=True)
    return found


def main(argv: list[str]) -> None:
    if not 1 <= len(argv) <= 2 or any(not a.endswith(".json") for a in argv):
        print("digests: expected NEW.json, or NEW.json and OLD.json to compare with", file=sys.stderr)
        sys.exit(2)
    names = [*methods.registry(), *methods.registry(methods.ABLATIONS)]
    found = digests(names)
    Path(argv[0]).write_text(json.dumps(found, indent=2) + "\n")
    if len(argv) == 2:
        before = json.loads(Path(argv[1]).read_text())
        different = [k for k in before.keys() | found.keys() if before.get(k) != found.get(k)]
        print(f"{len(different)} of {len(found)} differ", *sorted(different), sep="\n")
        sys.exit(1 if different else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
