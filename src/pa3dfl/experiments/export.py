"""Exports clients' own models: computed again from a run, checked, and written as files."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config
from pa3dfl.core.tree import Tree, count
from pa3dfl.data import Arrays, load_own, split_one
from pa3dfl.experiments.api import build
from pa3dfl.federation.federation import Federation
from pa3dfl.federation.remake import Remade, recorded, remade
from pa3dfl.methods import Method
from pa3dfl.methods.assembly import arrays_of, configure, fingerprint
from pa3dfl.methods.problem import Problem
from pa3dfl.models.alone import network
from pa3dfl.runs import formats, personal
from pa3dfl.runs.format import RunDirectory

EXACT = ("fp32", "fp64")
"""Arithmetic in which a network predicts the same outside of a run; narrower products are a run's own."""


class ByItself(nn.Module):
    """A module for a method with its own `predict`; it holds the tested candidate."""

    def __init__(self, method: Method, problem: Problem, width: Any, tree: Tree) -> None:
        super().__init__()
        self.method, self.problem, self.width, self.names = method, problem, width, list(tree)
        for i, v in enumerate(tree.values()):
            self.register_buffer(f"tensor{i}", v.detach().cpu())

    def forward(self, x: Tensor) -> Tensor:
        tree = {name: self.get_buffer(f"tensor{i}") for i, name in enumerate(self.names)}
        return self.method.predict(self.problem, self.width, tree, x)


def export(
    path: Path, clients: Sequence[int] | None = None, form: str = "safetensors", out: Path | None = None,
    data_dir: str | None = None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Write the models of these clients of a run (None: of all that were tested), or that of a node's folder.

    Yields a record for each file. Every model is tested again on its client's test rows: one with another accuracy
    than at the best evaluation is refused.
    """
    if form not in formats.FILES:
        raise UserError(f"format is {form!r}: expected one of {', '.join(formats.FILES)}")
    out = out or path / "models"
    if (path / personal.CARD).is_file():
        yield _of_node(path, form, out)
        return
    config, arrays, federation = opened(path, data_dir)
    with closing(federation.engine):
        for model in verified(federation, sorted(recorded(federation)) if clients is None else clients):
            task, client, was = federation.task, model.client, model.recorded
            card = personal.describe(federation.method, task, client, dict(config.options), config.method)
            card |= {
                "client": client.id,
                "round": model.round,
                "rule": was.rule,
                "val_accuracy": was.val_accuracy,
                "test_accuracy": was.test_accuracy,
                "alpha": was.alpha,
                "coding": arrays.coding,
            }
            rows = task.data.rows(client.id, "test").numpy()
            made = standing(federation.method, task, client.width, model.tree)
            folder = out / f"client-{client.id}"
            yield _written(card, made, model.tree, some(arrays, rows), form, folder, config.precision in EXACT)


def module(run: Path, client: int, data_dir: str | None = None) -> nn.Module:
    """The tested model of one client, as a network that predicts."""
    _, _, federation = opened(run, data_dir)
    with closing(federation.engine):
        [model] = verified(federation, [client])
        return standing(federation.method, federation.task, model.client.width, model.tree)


def opened(run: Path, data_dir: str | None) -> tuple[Config, Arrays, Federation]:
    """A run's federation, as it was when it trained."""
    directory = RunDirectory(run)
    if not directory.config.is_file():
        raise UserError(f"{run} is not a run directory: it has no {directory.config.name}")
    given = directory.read_config()
    expected = given.pop("data_fingerprint", None)
    if expected is None:
        raise UserError(f"{run} is the run of a deployment, whose models stay on the nodes: give a node's folder")
    config = configure(given | {"out": str(run)} | ({"data_dir": data_dir} if data_dir else {}))
    arrays = arrays_of(config)
    if expected != fingerprint(arrays):
        raise UserError(f"the data of {run} has changed since the run: restore it")
    return config, arrays, build(config, arrays, directory)


def verified(federation: Federation, ids: Sequence[int]) -> Iterator[Remade]:
    """The models computed again, if they equal those that were tested."""
    n = len(federation.task.clients)
    for i in ids:
        if not 0 <= i < n:
            raise UserError(f"there is no client {i}: this run has clients 0 to {n - 1}")
    for model in remade(federation, ids):
        now, was = model.score, model.recorded
        if (now.test_accuracy, now.val_accuracy, now.alpha) != (was.test_accuracy, was.val_accuracy, was.alpha):
            raise UserError(
                f"client {was.client}'s model, computed again, has accuracy {now.test_accuracy:.4f} and α "
                f"{now.alpha:g}; at round {model.round} it had {was.test_accuracy:.4f} and {was.alpha:g}: use the "
                "PyTorch, the device and the kind of processor of the run"
            )
        yield model


def standing(method: Method, problem: Problem, width: Any, tree: Tree) -> nn.Module:
    """A plain network; for a method with its own `predict`, a module that calls it."""
    if type(method).predict is Method.predict:
        return network(problem.model, tree, width)
    alone = Problem(problem.model, problem.p_min, problem.seed, torch.device("cpu"), dtype=problem.dtype)
    return ByItself(method, alone, width, tree).eval()


def some(arrays: Arrays, rows: np.ndarray) -> Arrays:
    return replace(arrays, x=arrays.x[rows], y=arrays.y[rows], client=None)


def _of_node(folder: Path, form: str, out: Path) -> dict[str, Any]:
    """The model that a node of a deployment keeps, with the rows on which it was tested."""
    card = personal.read(folder).card
    if "format" in card:
        raise UserError(f"{folder} holds an exported model: give the run directory or the node's folder")
    method, problem, width, tree = personal.candidate_of(card, folder)
    data = Path(card.get("data", ""))
    if not data.is_file():
        raise UserError(f"the rows on which {folder}'s model was tested are not at {data}: export it on its node")
    arrays = load_own(data)
    rows = split_one(card["client"], np.arange(len(arrays.y)), card["seed"]).test
    made = standing(method, problem, width, tree)
    return _written(dict(card), made, tree, some(arrays, rows), form, out, card["exact"])


def _written(
    card: dict[str, Any], made: nn.Module, tree: Tree, test: Arrays, form: str, folder: Path, exact: bool
) -> dict[str, Any]:  # fmt: skip
    if isinstance(made, ByItself) and form != "safetensors":
        raise UserError(
            f"a model of {card['method']} is no plain network, because its weights depend on the batch: use --format "
            "safetensors, and `pa3dfl predict`"
        )
    card |= {"file": formats.FILES[form], "parameters": count(tree)}
    if form == "onnx":  # its runtime has few operations on float64
        made, card["precision"] = made.float(), "fp32"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / card["file"]
    try:
        if isinstance(made, ByItself):
            personal.write_tensors(path, tree)
        else:
            card["format"] = form
            formats.write(path, form, made, personal.inputs(card, test, torch.arange(len(test.x))))
        card["bytes"] = path.stat().st_size
        personal.write_card(folder, card)
        card["file_accuracy"] = _accuracy(folder, test)
        if exact and card["file_accuracy"] != card["test_accuracy"]:
            raise UserError(
                f"{path} has test accuracy {card['file_accuracy']:.4f}, the tested model had "
                f"{card['test_accuracy']:.4f}: use another --format"
            )
        personal.write_card(folder, card)
    except BaseException:  # files that failed the check are removed
        path.unlink(missing_ok=True)
        (folder / personal.CARD).unlink(missing_ok=True)
        raise
    return card | {"path": str(path)}


def _accuracy(folder: Path, test: Arrays) -> float:
    """The accuracy of the written file, counted as in a test."""
    correct = personal.predict(personal.read(folder), test).argmax(1) == test.y
    return float(correct.sum()) / len(correct)
