"""This library beside the plain loop, the processor's limit and other simulators: `make bench`.

Everybody trains the same rounds in a process of its own. Contestants take turns, several times over, and medians
are compared, because a machine is never quiet for long.
"""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.memory import Watch
from benchmarks.tables import median, save, show
from benchmarks.work import Work

ROOT = Path(__file__).parent.parent
OURS, PLAIN, HALF, LIMIT = "pa3dfl", "pa3dfl, plain layout", "pa3dfl, bfloat16", "limit"
SELF = {
    OURS: ("ours", "auto", "fast", "fp32"),
    PLAIN: ("ours", "auto", "plain", "fp32"),
    HALF: ("ours", "auto", "fast", "bf16"),
    "sequential loop": ("ours", "sequential", "plain", "fp32"),
    LIMIT: ("limit", "fp32"),
    "limit, bfloat16": ("limit", "bf16"),
}
PEERS = ("flgo", "pfl", "flwr", "fedjax")
Result = dict[str, Any]


def main() -> None:
    args = arguments()
    works = [dataclasses.replace(args.work, width=w) for w in args.widths]
    everybody = [name for name in (*SELF, *PEERS) if not args.only or name in args.only]
    if not args.bf16:
        everybody = [name for name in everybody if "bfloat16" not in name]
    results: dict[float, dict[str, list[Result]]] = {w.width: {name: [] for name in everybody} for w in works}
    for turn in range(args.repeats):
        for work in works:
            for name in everybody:
                before = results[work.width][name]
                if any("error" in r for r in before):
                    continue
                before.append(play(name, work, args))
                said = before[-1].get("error") or f"{before[-1]['samples_per_second']:,.0f} samples/s"
                print(f"{turn + 1}/{args.repeats}  width {work.width:g}  {name}: {said}", file=sys.stderr, flush=True)
    for work in works:
        rows = summary(results[work.width])
        show(f"width {work.width:g}: samples a second, medians of {args.repeats}", rows)
    if not args.bf16:
        print("bfloat16 left out: this processor has no instructions for it (--bf16 measures it anyway)")
    settings = dataclasses.asdict(args.work) | {"repeats": args.repeats, "torch": torch.__version__}
    save(args.out, "cpu", settings, {str(w): r for w, r in results.items()})


def play(name: str, work: Work, args: argparse.Namespace) -> Result:
    """One contestant's run: what it printed last, and the most memory that it held."""
    given = json.dumps(dataclasses.asdict(work))
    python = sys.executable if name in SELF else str(args.peers / "bin" / "python")
    if name not in SELF and not Path(python).exists():
        return {"error": f"no environment at {args.peers}: `make bench` makes it"}
    module, *more = SELF.get(name, (f"peers.{name}",))
    command = [python, "-m", f"benchmarks.{module}", given, *more]
    # A peer is given the cores in the way that suits it, by its own file.
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    watch = Watch(process)
    try:
        out, err = process.communicate(timeout=args.patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": f"not done after {args.patience} s"}
    finally:
        peak = watch.stop()
    lines = [line for line in out.splitlines() if line.startswith('{"samples_per_second"')]
    if process.returncode or not lines:
        return {"error": reason(err)}
    return json.loads(lines[-1]) | {"peak_mb": peak}


def reason(said: str) -> str:
    """The line of a traceback that names the error, or else the last one."""
    lines = said.strip().splitlines() or ["it said nothing"]
    return next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), lines[-1])[:200]


def summary(results: dict[str, list[Result]]) -> list[dict[str, Any]]:
    """Medians, and ratios to this library's plain float32 run."""
    speeds = {name: median([r["samples_per_second"] for r in rs if "error" not in r]) for name, rs in results.items()}
    rivals = [speeds[p] for p in PEERS if speeds.get(p, 0) > 0]
    best, limit = max(rivals, default=float("nan")), speeds.get(LIMIT, float("nan"))
    rows = []
    for name, rs in results.items():
        error = next((r["error"] for r in rs if "error" in r), "")
        rows.append({
            "who": name,
            "samples/s": speeds[name],
            "of the best peer": speeds[name] / best,
            "of the limit": speeds[name] / limit,
            "peak MB": max((r["peak_mb"] for r in rs if "error" not in r), default=float("nan")),
            "did not run because": error,
        })  # fmt: skip
    return rows


def arguments() -> argparse.Namespace:
    own = Work()
    parser = argparse.ArgumentParser("benchmarks.cpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a small round, once: does everything run?")
    parser.add_argument("--widths", type=float, nargs="+", default=[0.25, 1.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="WHO", help=f"some of: {', '.join((*SELF, *PEERS))}")
    parser.add_argument("--bf16", action="store_true", default=has_bfloat16())
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-peers", help="environment of the peers")
    parser.add_argument("--patience", type=int, default=900, help="seconds that one run may take")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench" / "cpu.json")
    for field in dataclasses.fields(Work):
        if field.name not in ("width", "lr"):
            parser.add_argument(f"--{field.name}", type=int)
    args = parser.parse_args()
    short = {"clients": 4, "rows": 80, "epochs": 2} if args.short else {}
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(own) if getattr(args, f.name, None) is not None}
    args.work = dataclasses.replace(own, **({"threads": os.cpu_count() or 1} | short | given))
    if args.work.rows % 8:
        parser.error("rows must be a multiple of 8")
    args.repeats = 1 if args.short else args.repeats
    return args


def has_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


if __name__ == "__main__":
    main()
