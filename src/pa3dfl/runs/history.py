"""The folder `history` of a run: facts about each client and the hyper-network at each evaluation.

One uncompressed .npz for each kept evaluation, one for what does not change, and `about.json`, which names what was
left out. A budget bounds the folder: of many clients a fixed sample is kept, of many evaluations every k-th.
"""

import io
import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa3dfl import __version__
from pa3dfl.core import machine
from pa3dfl.core.files import write_atomically
from pa3dfl.core.randomness import numpy_generator
from pa3dfl.core.tree import Tree, nbytes
from pa3dfl.engines.multiply_adds import of_step
from pa3dfl.methods import Method, Score
from pa3dfl.methods.problem import Client, Task

CLIENTS = 1000
"""How many clients are kept at most."""
BUDGET = 16 * 2**20
"""Bytes that the evaluations of a run may take together."""
TAU = "tau/"

_ARRAYS = {
    "client": "ids of the clients that are kept",
    "adapted, received, kept": "test accuracy by each rule of testing; NaN: not measured",
    "loss, alpha": "validation loss and chosen α of the model that scores",
    "embeddings": "(clients, d) rows of the hyper-network's input",
    "encoded": "(clients, h) rows of its encoder's output, of length one where layers mix clients: layer l gives "
    "client j the weight softmax_j(encoded[i]·encoded[j] / tau[l]) in what client i receives",
    "tau, tau_layers": "temperature of each layer, and the layer's name",
    "labels": "in clients.npz: (clients, classes) rows of each label that a client owns",
}


class History:
    def __init__(self, folder: Path, method: Method, task: Task, evaluations: int) -> None:
        self.folder, self.method, self.task, self.evaluations = folder, method, task, evaluations
        # Read at the start: files may change while the run goes on.
        self._made_by = {"version": __version__, "commit": machine.commit(), "torch": torch.__version__,
                         "device": machine.device_name(task.device)}  # fmt: skip
        self._every = 0
        self._steps: dict[Fraction, int | None] = {}
        self._labelled: set[int] = set()

    def rewind(self, rnd: int) -> None:
        """Delete the evaluations after round `rnd`."""
        for file in self.folder.glob("round-*.npz"):
            if round_of(file) > rnd:
                file.unlink()

    def write(
        self, rnd: int, nth: int, by_rule: Mapping[str, list[Score]], tested: str, server: Tree,
        shapes: Mapping[Fraction, Tree],
    ) -> None:  # fmt: skip
        """The `nth` evaluation, counted from 1, after round `rnd`; `shapes` holds what each width is sent."""
        ids = self.sample([s.client for s in by_rule[tested]])
        arrays = self._of_scores(ids, by_rule, tested) | self._of_server(ids, server)
        if not self._every:
            size = sum(a.nbytes for a in arrays.values())
            self._every = math.ceil(self.evaluations * size / BUDGET)
        if nth % self._every and nth != self.evaluations:
            return
        self.folder.mkdir(exist_ok=True)
        self._describe(ids, len(by_rule[tested]), shapes)
        save(self.folder / f"round-{rnd:07}.npz", arrays)

    def sample(self, ids: Sequence[int]) -> list[int]:
        """All, or the same sample at every evaluation."""
        if len(ids) <= CLIENTS:
            return list(ids)
        chosen = numpy_generator(self.task.seed, "history").choice(len(ids), CLIENTS, replace=False)
        return [ids[i] for i in sorted(chosen.tolist())]

    def _of_scores(self, ids: list[int], by_rule: Mapping[str, list[Score]], tested: str) -> dict[str, np.ndarray]:
        scores = {rule: {s.client: s for s in each} for rule, each in by_rule.items()}
        arrays = {"client": np.array(ids, np.int32)}
        for rule, own in scores.items():
            arrays[rule] = np.array([own[i].test_accuracy if i in own else math.nan for i in ids], np.float32)
        chosen = scores[tested]
        arrays["loss"] = np.array([chosen[i].val_loss for i in ids], np.float32)
        arrays["alpha"] = np.array([chosen[i].alpha for i in ids], np.float32)
        return arrays

    def _of_server(self, ids: list[int], server: Tree) -> dict[str, np.ndarray]:
        found = {k: array(v) for k, v in self.method.history(self.task, server, ids).items()}
        tau = {k.removeprefix(TAU): found.pop(k) for k in list(found) if k.startswith(TAU)}
        if tau:
            found |= {"tau": np.array(list(tau.values()), np.float32), "tau_layers": np.array(list(tau))}
        return found

    def _describe(self, ids: list[int], tested: int, shapes: Mapping[Fraction, Tree]) -> None:
        """Write what does not change between evaluations; again only when clients have joined."""
        if self._labelled.issuperset(ids):
            return
        self._labelled = set(ids)
        for client in (self.task.clients[i] for i in ids):
            if client.width not in self._steps and client.width in shapes:
                self._steps[client.width] = of_step(self.method, self.task, client, shapes[client.width])
        if len(self.task.data.y):  # in a deployment, labels stay with their owners
            counts = np.stack([label_counts(self.task, self.task.clients[i]) for i in ids])
            save(self.folder / "clients.npz", {"client": np.array(ids, np.int32), "labels": counts})
        about: dict[str, Any] = {
            "format": 1,
            **self._made_by,
            "clients_tested": tested,
            "clients_kept": len(ids),
            "evaluations_planned": self.evaluations,
            "evaluations_kept": f"every {self._every}" if self._every > 1 else "all",
            "budget_bytes": BUDGET,
            "arrays": _ARRAYS,
            "forward_multiply_adds_of_a_step": {str(w): n for w, n in sorted(self._steps.items())},
            "bytes_received_of_a_round": {str(w): nbytes(shapes[w]) for w in sorted(self._steps)},
        }
        write_atomically(self.folder / "about.json", (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())


def round_of(file: Path) -> int:
    return int(file.stem.removeprefix("round-"))


def label_counts(task: Task, client: Client) -> np.ndarray:
    rows = np.concatenate([task.data.rows(client.id, part).numpy() for part in ("train", "val", "test")])
    labels = task.data.y[rows].cpu().numpy()
    return np.bincount(labels, minlength=task.data.classes).astype(np.int32)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    write_atomically(path, content.getvalue())
