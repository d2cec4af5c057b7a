"""A client's own model as files: the tensors, and a JSON that says how to load them and what input they take."""

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load

from pa3dfl import methods
from pa3dfl.core import files
from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree, wire
from pa3dfl.data import Arrays, FederatedData
from pa3dfl.engines.local import TEST_BATCH
from pa3dfl.methods import Method
from pa3dfl.methods.assembly import make_model
from pa3dfl.methods.problem import Client, Problem, Task

CARD = "model.json"
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class Personal:
    method: Method
    problem: Problem
    width: Fraction
    tree: Tree
    mean: torch.Tensor | None
    std: torch.Tensor | None


def describe(method: Method, task: Task, client: Client, options: dict[str, Any], name: str) -> dict[str, Any]:
    """All that a prediction needs besides the tensors of a client's model."""
    data = task.data
    return {
        "method": name,
        "options": options,
        "model": task.model.name,
        "width": str(client.width),
        "r": str(client.r),
        "p_min": str(task.p_min),
        "input_shape": list(data.input_shape),
        "classes": data.classes,
        "mean": None if data.mean is None else data.mean.flatten().tolist(),
        "std": None if data.std is None else data.std.flatten().tolist(),
        "precision": next(k for k, v in DTYPES.items() if v == task.dtype),
    }


def write_tensors(path: Path, tree: Tree) -> None:
    files.write_tensors(path, wire(tree), durable=True)


def write_card(folder: Path, card: dict[str, Any]) -> None:
    files.write_atomically(folder / CARD, (json.dumps(card, indent=2) + "\n").encode())


def read(path: Path) -> Personal:
    """Read a model, given its JSON or the folder of that."""
    path = path / CARD if path.is_dir() else path
    try:
        card = json.loads(path.read_text())
        tree = wire(load((path.parent / card["file"]).read_bytes()))
        method = methods.find(card["method"])(**card["options"])
        p_min, width, shape = Fraction(card["p_min"]), Fraction(card["width"]), tuple(card["input_shape"])
        classes, dtype = int(card["classes"]), DTYPES[card["precision"]]
        mean, std = (None if card[k] is None else _channels(card[k], len(shape)) for k in ("mean", "std"))
    except OSError as e:
        raise UserError(f"model {path} cannot be read: {e.strerror}; expected a node's folder or its {CARD}") from None
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as e:
        raise UserError(f"{path} is not a personal model: {type(e).__name__} {e}; expected a node's {CARD}") from None
    model = make_model(card["model"], method, shape, classes, p_min)
    problem = Problem(model, p_min, 0, torch.device("cpu"), dtype=dtype)
    return Personal(method, problem, width, tree, mean, std)


@torch.no_grad()
def predict(personal: Personal, arrays: Arrays) -> np.ndarray:
    """The probabilities of the classes, one row for each row of the data."""
    problem, model = personal.problem, personal.problem.model
    if arrays.x.shape[1:] != model.input_shape or (arrays.x.dtype == np.uint8) != (personal.mean is not None):
        kind = "bytes" if personal.mean is not None else "floats"
        raise UserError(
            f"the data has rows of shape {arrays.x.shape[1:]} and type {arrays.x.dtype}: "
            f"this model was trained on {kind} of shape {model.input_shape}"
        )
    x = torch.from_numpy(arrays.x)
    data = FederatedData(x, torch.from_numpy(arrays.y), [], model.classes, personal.mean, personal.std, False)
    out = []
    for start in range(0, max(len(x), 1), TEST_BATCH):
        rows = torch.arange(start, min(start + TEST_BATCH, len(x)))
        batch, _ = data.batch(rows, None, problem.dtype)
        logits = personal.method.predict(problem, personal.width, personal.tree, batch)
        out.append(logits.softmax(1))
    return torch.cat(out).numpy()


def _channels(values: list[float], ndim: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(1, -1, *[1] * (ndim - 1))
