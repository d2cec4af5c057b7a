"""Both efficiency tables: multiply-adds, memory and size of CIFAR100's CNN by capacity and batch size."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from pa3dfl import __version__, methods
from pa3dfl.core import machine
from pa3dfl.engines.cost import cost
from pa3dfl.experiments.reproduce import paper, records
from pa3dfl.experiments.reproduce.groups import TITLES
from pa3dfl.experiments.reproduce.markdown import number, table
from pa3dfl.methods import assembly

BATCHES = (16, 64, 128, 512)
MODEL, SHAPE, CLASSES = "cnn-cifar100", (3, 32, 32), 100
ROWS = {"p-width": "fedavg", "flanc": "flanc", "pfedgate": "pfedgate", "pa3dfl": "pa3dfl"}
"""The paper's rows, and whose costs they are; a p-width network is a slice of the full one."""

MEASURES = {"multiply_adds": 1e-7, "memory": 2**-20, "size": 10 * 2**-20}
"""The factor to the paper's unit; its sizes only fit megabytes of 2^20 bytes."""


def width_and_p_min(name: str, r: Fraction) -> tuple[Fraction, Fraction]:
    """p = √r at p_min 1/16; the paper's row of Pa3dFL at r = 1 fits p_min 1/8, its Ideal setting."""
    width = Fraction(round(16 * float(r) ** 0.5), 16)
    return width, Fraction(1, 8) if name == "pa3dfl" and r == 1 else Fraction(1, 16)


def measure(device: torch.device, batches: Sequence[int]) -> list[dict[str, Any]]:
    """All cells of the tables: multiply-adds and sizes are counted, memory is measured on the device."""
    rows = []
    for name, method_name in ROWS.items():
        method = methods.find(method_name)()
        for r in paper.RATIOS:
            width, p_min = width_and_p_min(name, r)
            model = assembly.make_model(MODEL, method, SHAPE, CLASSES, p_min)
            for batch in batches:
                [found] = cost(method, model, p_min, batch, [width], device)
                rows.append(
                    {
                        "row": name, "r": str(r), "p_min": str(p_min), "batch": batch,
                        "multiply_adds": found["encoder_multiply_adds"], "memory": found["peak_training_bytes"],
                        "size": found["encoder_bytes"],
                    }
                )  # fmt: skip
    return rows


def run(results: Path, device_name: str, batches: Sequence[int] | None = None) -> Path:
    """Measure what is missing in this machine's record."""
    device = assembly.device_of(device_name)
    name = "".join(c if c.isalnum() else "-" for c in machine.processor(device.type).lower())[:60]
    known = records.read(results / "efficiency" / f"{name}.json") or {"rows": []}
    missing = [b for b in batches or BATCHES if b not in {row["batch"] for row in known["rows"]}]
    rows = known["rows"] + measure(device, missing)
    about = {"device": machine.processor(device.type), "commit": machine.commit(), "version": __version__}
    return records.write(about | {"rows": rows}, results / "efficiency", name)


def section(results: Path) -> str:
    """The paper's numbers and those of this library, for each machine whose memory was measured."""
    found = [r for path in sorted((results / "efficiency").glob("*.json")) if (r := records.read(path))]
    note = (
        "CIFAR100's CNN. Each cell: ours (the paper's). Multiply-adds and size are those of the encoder, recovery of "
        "weights included; memory is the most that is alive in real training steps; MB are 2^20 bytes. "
        "Pa3dFL's column r = 1 has p_min 1/8."
    )
    parts = [note]
    for record in found or [{"device": "not measured yet", "rows": []}]:
        parts.append(f"### On {record['device']}" if found else "Nothing was measured yet.")
        parts += [_of_measure(record["rows"], m) for m in MEASURES]
    return "\n\n".join(parts)


def _of_measure(rows: Sequence[dict[str, Any]], measure: str) -> str:
    headline = {"multiply_adds": "10⁷ multiply-adds", "memory": "Peak memory, MB", "size": "Encoder, 0.1 MB"}[measure]
    full = paper.numbers()["efficiency"]["full"].get(measure)
    main = paper.numbers()["efficiency"]["main"][measure]
    ours = {(row["row"], row["batch"], row["r"]): row[measure] for row in rows}
    lines = []
    for name in ROWS:
        for batch in full[name] if full else (128,):
            printed = full[name][batch] if full else main[name]
            cells = []
            for r, theirs in zip(paper.RATIOS, printed, strict=True):
                value = ours.get((name, batch, str(r)))
                cells.append(f"{number(value and value * MEASURES[measure], '.4g')} ({theirs:g})")
            lines.append([TITLES.get(name, name), *([str(batch)] if full else []), *cells])
    headers = ["", *(["batch"] if full else []), *(f"r = {r}" for r in paper.RATIOS)]
    return f"{headline}:\n\n" + table(headers, lines)
