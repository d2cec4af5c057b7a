"""A test of the convergence theorem: every client takes one full-batch step in each round, by the same code as a run.

Then θ_u moves by η ∂F/∂θ_u and the hyper-network's φ by γη ∂F/∂φ, so both gradients follow from the states. The
theorem bounds the mean of γη(1 − γηL_φ/2)‖∂F/∂φ‖² + η(1 − ηL_u/2)‖∂F/∂θ_u‖² by (F(0) − F*)/T; gradients are exact, so
that its O(η²) is zero. F* is taken as 0, below any cross-entropy. L_u and L_φ are the largest ratios of the change of a
gradient to the change of its parameters along the way. The paper prints L_φ in both sums; its proof gives L_u in the
second.
"""

import math
from pathlib import Path
from typing import Any

import torch

from pa3dfl.core import machine
from pa3dfl.core.tree import Tree, take
from pa3dfl.data import Arrays, load
from pa3dfl.engines import Round
from pa3dfl.engines.sequential import Sequential
from pa3dfl.experiments.reproduce import records
from pa3dfl.experiments.reproduce.drawing import legend, panels, plot, save
from pa3dfl.methods import assembly
from pa3dfl.methods.pa3dfl.general import U
from pa3dfl.methods.pa3dfl.method import HN, Pa3dFL
from pa3dfl.methods.problem import Task

CLIENTS, ROWS, ROUNDS = 4, 10, 120
GAMMA, ETA, DECAY = 1.0, 0.004, 0.998

Made = tuple[Pa3dFL, Task]


def make(rows: int) -> Made:
    """Bundled images, three levels of capacity, float64; neither clipping nor weight decay nor a local head's loss."""
    method = Pa3dFL(
        embedding=8, hidden=8, hn_lr=GAMMA, hn_encoder_lr=GAMMA, hn_clip=0.0, tau_min=1e-9, local_weight=1e-30
    )
    config = assembly.configure(
        {
            "method": "pa3dfl", "data": "fashion-mnist-10k", "clients": CLIENTS, "partition": "classes",
            "classes_per_client": 3, "setting": "levels:1/4,1/16,1/64", "p_min": "1/8", "epochs": 1, "batch": 10 * rows,
            "lr": ETA, "lr_decay": DECAY, "weight_decay": 0, "clip_norm": 0, "device": "cpu", "precision": "fp64",
            "threads": torch.get_num_threads(),
        }
    )  # fmt: skip
    whole = load(config.data)
    few = CLIENTS * rows
    return method, assembly.make_task(config, method, Arrays(whole.x[:few], whole.y[:few], whole.classes))


def descend(made: Made, rounds: int) -> list[dict[str, float]]:
    """F, both gradients' squared norms, and how each changed, before every round."""
    method, task = made
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    steps: list[dict[str, float]] = []
    before: tuple[Tree, Tree] | None = None
    moved = (0.0, 0.0)
    for t in range(1, rounds + 1):
        eta = task.local.rate(t)
        old = {k: v.clone() for k, v in server.items()}
        updates = Sequential().train(Round(method, task, server, {}, task.clients, t))
        objective = math.fsum(u.loss for u in updates) / len(updates)
        server = method.aggregate(task, server, updates, t)
        general, personal = (
            _slope(take(U, old), take(U, server), eta),
            _slope(take(HN, old), take(HN, server), GAMMA * eta),
        )
        step = {"F": objective, "eta": eta, "general": _square(general), "personal": _square(personal)}
        if before is not None:
            step["L_u"] = _distance(general, before[0]) / moved[0]
            step["L_phi"] = _distance(personal, before[1]) / moved[1]
        steps.append(step)
        before, moved = (general, personal), (eta * step["general"] ** 0.5, GAMMA * eta * step["personal"] ** 0.5)
    return steps


def sides(steps: list[dict[str, float]]) -> list[tuple[float, float]]:
    """The bound's left and right side after each number of rounds."""
    L_u, L_phi = (max(s[k] for s in steps if k in s) for k in ("L_u", "L_phi"))
    total, found = 0.0, []
    for T, s in enumerate(steps, 1):
        eta, pace = s["eta"], GAMMA * s["eta"]
        total += pace * (1 - pace * L_phi / 2) * s["personal"] + eta * (1 - eta * L_u / 2) * s["general"]
        found.append((total / T, steps[0]["F"] / T))
    return found


def _slope(old: Tree, new: Tree, pace: float) -> Tree:
    return {k: (old[k] - new[k]) / pace for k in old}


def _square(tree: Tree) -> float:
    return math.fsum(float(v.square().sum()) for v in tree.values())


def _distance(a: Tree, b: Tree) -> float:
    return math.sqrt(_square({k: a[k] - b[k] for k in a}))


def run(results: Path, rounds: int | None = None, rows: int | None = None) -> Path:
    """Recorded once: equal on every machine up to the last digits."""
    path = results / "convergence.json"
    if path.is_file():
        return path
    rows = rows or ROWS
    steps = descend(make(rows), rounds or ROUNDS)
    about: dict[str, Any] = {
        "clients": CLIENTS, "rows": rows, "gamma": GAMMA, "eta": ETA, "decay": DECAY, "commit": machine.commit(),
    }  # fmt: skip
    return records.write(
        about | {"steps": [{k: float(f"{v:.6g}") for k, v in s.items()} for s in steps]}, results, path.stem
    )


def picture(results: Path, out: Path) -> tuple[str, Path] | None:
    """Both gradients' norms, and both sides of the bound."""
    found = records.read(results / "convergence.json")
    if found is None:
        return None
    steps = found["steps"]
    fig, axes = panels(1, 3)
    names = ["‖∂F/∂θ_u‖", "‖∂F/∂φ‖", "left side", "right side", "F"]
    plot(axes[0], {"F": [(t, s["F"]) for t, s in enumerate(steps)]}, names)
    norms = {"‖∂F/∂θ_u‖": "general", "‖∂F/∂φ‖": "personal"}
    plot(axes[1], {name: [(t, s[k] ** 0.5) for t, s in enumerate(steps)] for name, k in norms.items()}, names)
    both = list(enumerate(sides(steps), 1))
    plot(axes[2], {"left side": [(T, b[0]) for T, b in both], "right side": [(T, b[1]) for T, b in both]}, names)
    for ax, title in zip(axes, ("objective", "norms of the gradients", "the theorem's bound"), strict=True):
        ax.set(xlabel="round", title=title)
    axes[1].set_yscale("log")
    axes[2].set_yscale("log")
    legend(fig, axes)
    L_u, L_phi = (max(s.get(k, 0.0) for s in steps) for k in ("L_u", "L_phi"))
    text = (
        f"The convergence theorem: {found['clients']} clients, one full-batch step each a round, "
        f"γ = {found['gamma']:g}, η = {found['eta']:g}·{found['decay']:g}^t; L_u {L_u:.3g}, L_φ {L_phi:.3g}"
    )
    return text, save(fig, out)
