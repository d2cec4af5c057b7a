"""Writes docs/reproduction.md from the records alone."""

from collections.abc import Sequence
from pathlib import Path

from pa3dfl.core.files import write_atomically
from pa3dfl.core.progress import duration
from pa3dfl.core.words import counted
from pa3dfl.experiments.reproduce import ablation, efficiency, figures, hn_cost, overall, records, verdict
from pa3dfl.experiments.reproduce.groups import Column, columns, with_empty

TERMS = """\
Every number below is made from the files in `results/` by `pa3dfl reproduce --render-only`; nothing is typed by hand. A
cell that has not been run is empty (–). Accuracies are percent, means over clients and then over seeds, ± the
deviation between seeds. *adapted*: every client receives the current state and trains as in a round before the test;
*received*: it does not train; *kept*: what the client still holds from its last participation. Each rule has its own
best round, chosen by its own validation accuracy. The paper does not say which rule it tested by.

Multiply-adds are those of forward passes in local training, bytes those sent in both directions; tests are in neither.
Seconds are comparable only roughly: runs may have shared their machine.
A value at a budget is that of the evaluation that validation chooses among those within the budget."""


def write(results: Path, docs: Path) -> Path:
    """Writes the page and its pictures; returns the page."""
    runs = records.read_all(results)
    found = columns(runs)
    parts = ["# Reproduction of the paper", verdict.opening(found), TERMS, "## Overall accuracy"]
    parts += [overall.section(column) for column in with_empty(found)]
    parts += ["## Efficiency", efficiency.section(results), "## Cost of the hyper-network", hn_cost.section(results)]
    parts += ["## Ablation", *(ablation.section(c) for c in _ablated(found))]
    parts += ["## Figures", figures.section(found, results, docs)]
    parts += ["## Runs", provenance(runs)]
    docs.mkdir(parents=True, exist_ok=True)
    write_atomically(docs / "reproduction.md", ("\n\n".join(parts) + "\n").encode())
    return docs / "reproduction.md"


def _ablated(found: Sequence[Column]) -> list[Column]:
    """Columns with an ablation; the paper's own where there is none yet."""
    has = [c for c in found if c.row("pa3dfl-flanc") or c.row("pa3dfl-without-hn")]
    return has or [c for c in with_empty([]) if c.setting == "hetero" and c.data in ("cifar10", "fashion-mnist")]


def provenance(runs: Sequence[records.Record]) -> str:
    """The machines, commits and durations of the runs."""
    if not runs:
        return "None yet."
    by_device: dict[str, list[records.Record]] = {}
    for r in runs:
        by_device.setdefault(r["device"], []).append(r)
    lines = [
        f"- {device}: {counted(len(own), 'run')}, {duration(sum(r['seconds'] for r in own))}, "
        f"precision {', '.join(sorted({r['precision'] for r in own}))}"
        for device, own in sorted(by_device.items())
    ]
    commits = sorted({r["commit"] or "unknown" for r in runs})
    changed = " (+: with changes)" if any(c.endswith("+") for c in commits) else ""
    return "\n".join([*lines, f"- commits: {', '.join(commits)}{changed}"])
