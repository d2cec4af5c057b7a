"""Where the milliseconds of a Pa3dFL round go on a GPU: `python -m benchmarks.profile [--case NAME] [--out FILE.json]`.

Two bars, in one picture beside the JSON file. The first splits a round by the clock. The second splits the kernels of
a step of all 20 clients by kind: the time of each kernel when nothing runs beside it, so that the sum is several times
what a step takes with all clients side by side.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch.profiler import ProfilerActivity, profile

from benchmarks.arguments import count
from benchmarks.gpu import steps_alone
from benchmarks.tasks import BATCH, cohort, make, start, timed
from pa3dfl.engines import Round
from pa3dfl.engines.cuda.captured import Captured
from pa3dfl.engines.cuda.program import Program

# By what a kernel's name contains; the first that fits.
KINDS = {
    "pooling": ("max_pool",),
    "group norm": ("GroupNorm", "RowwiseMoments", "ComputeInternalGradients", "ComputeFusedParams"),
    "layouts for cuDNN": ("nchwToNhwc", "nhwcToNchw", "convertTensor", "AddPadding", "scalePackedTensor"),
    "convolutions": ("fprop", "dgrad", "wgrad", "convolve", "conv2d", "ImplicitGemmConvolution", "winograd"),
    "matrix products": ("gemm", "gemv", "splitK", "cublas", "cutlass"),
    "clipping and step": ("NormTwoOps", "addcmul", "CatArray"),
    "losses": ("softmax", "nll_loss"),
}
OTHER = "sums, copies, activations"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#BBBBBB")


def kind(kernel: str) -> str:
    return next((k for k, words in KINDS.items() if any(w in kernel for w in words)), OTHER)


def round_by_parts(engine: Captured, method: Any, task: Any, repeats: int) -> dict[str, float]:
    """Milliseconds."""
    server, chosen = start(method, task), cohort(task)

    def train() -> Any:
        return engine.train(Round(method, task, server, {}, chosen, 1))

    def whole() -> None:
        method.aggregate(task, server, train(), 1)

    training, everything = timed(train, repeats), timed(whole, repeats)
    steps, _ = steps_alone(engine, method, task, server, chosen, repeats)
    return {
        "steps of all clients": 1e3 * steps,
        "download, data, results": 1e3 * (training - steps),
        "aggregation, hyper-network": 1e3 * (everything - training),
    }


def kernels(program: Program) -> list[tuple[str, float]]:
    """(name, microseconds) of every kernel of one step."""
    program.rows.copy_(program.first)
    (replay,) = program._replays([BATCH], [{}])
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        with program.graphs.running():
            replay()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    return [(e["name"], e["dur"]) for e in events if e.get("cat") == "kernel"]


def by_kind(found: list[tuple[str, float]]) -> dict[str, float]:
    """Milliseconds, the most first."""
    sums: dict[str, float] = {}
    for name, microseconds in found:
        sums[kind(name)] = sums.get(kind(name), 0.0) + microseconds / 1e3
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def draw(bars: dict[str, dict[str, float]], out: Path) -> None:
    fig = Figure(figsize=(7.6, 1.75 * len(bars)), layout="constrained")
    FigureCanvasAgg(fig)
    for ax, (title, parts) in zip(fig.subplots(len(bars), 1), bars.items(), strict=True):
        left = 0.0
        for colour, (name, ms) in zip(COLOURS, parts.items(), strict=False):
            ax.barh(0, ms, left=left, color=colour, edgecolor="white", label=f"{name}: {ms:.3g} ms")
            left += ms
        ax.set(xlim=(0, left), yticks=[], ylim=(-0.4, 0.4))
        ax.set_title(title, loc="left", fontsize=10, color="#333333")
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(labelsize=9, colors="#333333")
        ax.legend(
            ncols=3,
            loc="upper left",
            bbox_to_anchor=(-0.01, -0.25),
            frameon=False,
            fontsize=8.5,
            handlelength=1,
            columnspacing=1,
        )
    fig.savefig(out, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.profile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", default="fashion", help="fashion, cifar100 or resnet")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--repeats", type=count, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/profile.json"), help="the picture goes beside it")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.profile needs a CUDA GPU")
    method, task = make(args.case, "pa3dfl", args.precision)
    engine = Captured()
    parts = round_by_parts(engine, method, task, args.repeats)
    found = [kernel for program in engine.streams.programs for kernel in kernels(program)]
    bars = {
        f"a round by the clock: {sum(parts.values()):.0f} ms": parts,
        f"the {len(found):,} kernels of a step of {len(engine.streams.programs)} clients, each alone": by_kind(found),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "case": args.case} | bars, indent=1) + "\n")
    draw(bars, args.out.with_suffix(".png"))
    print(f"{args.out}\n{args.out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
