"""A client's own model as files: its tensors, and a JSON card that says what they are and what input they take.

A node keeps the tree that it tested, and its card names the method. An exported model is a plain network in one of the
formats of `formats.py`, and its card names no method that a prediction would need.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load
from torch import Tensor, nn

from pa3dfl import methods
from pa3dfl.core import files
from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree, wire
from pa3dfl.data import Arrays, FederatedData
from pa3dfl.engines.local import TEST_BATCH
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Client, Problem, Task
from pa3dfl.models import Model, factory_of
from pa3dfl.models.alone import network
from pa3dfl.runs import formats

CARD = "model.json"
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class Personal:
    card: Mapping[str, Any]
    predict: formats.Predict
    """From a batch, as `inputs` makes it, to logits."""


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
        "whole": task.model.whole_numbers,
        "full_features": method.full_features,
    }


def write_tensors(path: Path, tree: Tree) -> None:
    files.write_tensors(path, wire(tree), durable=True)


def write_card(folder: Path, card: dict[str, Any]) -> None:
    files.write_atomically(folder / CARD, (json.dumps(card, indent=2) + "\n").encode())


def read(path: Path) -> Personal:
    """Read a model, given its folder, its JSON, or the file beside that."""
    given = path
    path = path / CARD if path.is_dir() else path if path.suffix == ".json" else path.parent / CARD
    try:
        given.stat()
        card = json.loads(path.read_text())
        return Personal(card, _opened(card, path.parent))
    except OSError as e:
        raise UserError(
            f"model {e.filename or path} cannot be read: {e.strerror}; "
            f"expected a node's folder or an exported one, or its {CARD}"
        ) from None
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as e:
        raise UserError(f"{path} is not a personal model: {type(e).__name__} {e}; expected its {CARD}") from None


def _opened(card: Mapping[str, Any], folder: Path) -> formats.Predict:
    file, form = folder / card["file"], card.get("format")
    if form is None:
        method, problem, width, tree = candidate_of(card, folder)
        return lambda x: method.predict(problem, width, tree, x)
    if form not in formats.FILES:
        raise UserError(f"{folder / CARD} names the format {form!r}: expected one of {', '.join(formats.FILES)}")

    def weights() -> nn.Module:
        model, width = _model(card), Fraction(card["width"])
        empty = {k: torch.empty(shape) for k, shape in model.shapes(width).items()}
        return network(model, empty, width)

    if not file.is_file():
        raise UserError(f"there is no file {file}, which {folder / CARD} names")
    return formats.read(file, form, weights)


def candidate_of(card: Mapping[str, Any], folder: Path) -> tuple[Method, Problem, Fraction, Tree]:
    """The tested candidate that a node keeps, with what predicts from it."""
    method = methods.find(card["method"])(**card["options"])
    tree = wire(load((folder / card["file"]).read_bytes()))
    problem = Problem(_model(card), Fraction(card["p_min"]), 0, torch.device("cpu"), dtype=DTYPES[card["precision"]])
    return method, problem, Fraction(card["width"]), tree


def _model(card: Mapping[str, Any]) -> Model:
    name, shape = card["model"], tuple(card["input_shape"])
    return Model(factory_of(name), name, shape, int(card["classes"]), card["full_features"])


@torch.no_grad()
def predict(personal: Personal, arrays: Arrays) -> np.ndarray:
    """The probabilities of the classes, one row for each row of the data."""
    out = []
    for start in range(0, max(len(arrays.x), 1), TEST_BATCH):
        rows = torch.arange(start, min(start + TEST_BATCH, len(arrays.x)))
        out.append(personal.predict(inputs(personal.card, arrays, rows)).softmax(1))
    return torch.cat(out).numpy()


def inputs(card: Mapping[str, Any], arrays: Arrays, rows: Tensor) -> Tensor:
    """Some rows of the data, as the model of this card takes them."""
    shape, images, dtype = tuple(card["input_shape"]), card["mean"] is not None, DTYPES[card["precision"]]
    if arrays.x.shape[1:] != shape or (arrays.x.dtype == np.uint8) != images:
        raise UserError(
            f"the data has rows of shape {arrays.x.shape[1:]} and type {arrays.x.dtype}: "
            f"this model was trained on {'bytes' if images else 'floats'} of shape {shape}"
        )
    mean, std = (_channels(card[k], len(shape)) if images else None for k in ("mean", "std"))
    x, none = torch.from_numpy(arrays.x), torch.zeros(len(arrays.x), dtype=torch.int64)
    batch, _ = FederatedData(x, none, [], card["classes"], mean, std, False).batch(rows, None, dtype)
    if not card["whole"]:
        return batch.to(dtype)
    if batch.is_floating_point():
        raise UserError("this model takes whole numbers (tokens), and the data has others: save x as int64")
    return batch


def _channels(values: list[float], ndim: int) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).view(1, -1, *[1] * (ndim - 1))
