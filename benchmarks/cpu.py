"""This library beside the plain loop, the processor's limit and other simulators, and Pa3dFL's rounds: `make bench`."""

import argparse
import dataclasses
from pathlib import Path

import torch

from benchmarks import rounds
from benchmarks.arguments import count, width
from benchmarks.contest import LIMIT, PEERS, ROOT, Contest, summary
from benchmarks.tables import save, show
from benchmarks.workload import Work

SELF = {
    "pa3dfl": ("library", "auto", "fast", "fp32"),
    "pa3dfl, plain layout": ("library", "auto", "plain", "fp32"),
    "pa3dfl, bfloat16": ("library", "auto", "fast", "bf16"),
    "sequential loop": ("library", "sequential", "plain", "fp32"),
    LIMIT: ("limit", "fp32"),
    "limit, bfloat16": ("limit", "bf16"),
}


def main() -> None:
    args = arguments()
    works = [dataclasses.replace(args.work, width=w) for w in args.widths]
    everybody = [name for name in (*SELF, *PEERS) if not args.only or name in args.only]
    if not args.bf16:
        everybody = [name for name in everybody if "bfloat16" not in name]
    results = Contest(SELF, args.peers, args.patience).hold(everybody, works, args.repeats)
    for work, result in zip(works, results, strict=True):
        show(f"width {work.width:g}: samples a second, medians of {args.repeats}", summary(result))
    if not args.bf16:
        print("bfloat16 left out: this processor has no instructions for it (--bf16 measures it anyway)")
    settings = dataclasses.asdict(args.work) | {"repeats": args.repeats, "torch": torch.__version__}
    measured = {str(w.width): r for w, r in zip(works, results, strict=True)}
    whole = {}
    if not args.only:
        precisions, epochs = ("fp32", "bf16")[: 1 + args.bf16], 1 if args.short else rounds.EPOCHS
        cases = rounds.CNNS[: 1 if args.short else None]
        whole = rounds.measured(cases, ["pa3dfl"], precisions, args.repeats, epochs, args.work.threads)
    save(args.out, "cpu", settings, measured | {"whole rounds": whole})


def arguments() -> argparse.Namespace:
    own = Work()
    parser = argparse.ArgumentParser("benchmarks.cpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a small round, once: does everything run?")
    parser.add_argument("--widths", type=width, nargs="+", default=[0.25, 1.0])
    parser.add_argument("--repeats", type=count, default=3)
    everybody = (*SELF, *PEERS)
    parser.add_argument("--only", nargs="+", choices=everybody, metavar="WHO", help=f"some of: {', '.join(everybody)}")
    parser.add_argument("--bf16", action="store_true", default=has_bfloat16())
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-peers", help="environment of the peers")
    parser.add_argument("--patience", type=count, default=900, help="seconds that one run may take")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench" / "cpu.json")
    sizes = ("clients", "rows", "epochs", "batch", "rounds", "threads")
    for size in sizes:
        parser.add_argument(f"--{size}", type=count)
    args = parser.parse_args()
    short = {"clients": 4, "rows": 80, "epochs": 2} if args.short else {}
    given = {size: getattr(args, size) for size in sizes if getattr(args, size) is not None}
    args.work = dataclasses.replace(own, **({"threads": torch.get_num_threads()} | short | given))
    if args.work.rows % 8:
        parser.error("rows must be a multiple of 8")
    args.repeats = 1 if args.short else args.repeats
    return args


def has_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


if __name__ == "__main__":
    main()
