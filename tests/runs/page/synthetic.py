"""Run directories as `pa3dfl run` writes them, of any size, in a moment."""

import base64
import csv
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pa3dfl.core.options.config import RULES_OF_TESTING
from pa3dfl.runs import page


def write_run(
    path: Path, method: str = "pa3dfl", clients: int = 8, evaluations: int = 3, seed: int = 0, classes: int = 10,
    ideal: bool = False, network: bool = True, finished: bool = True, history: bool = True,
    events: dict[int, dict[str, Any]] | None = None, names: Sequence[str] | None = None,
    away: dict[int, list[int]] | None = None,
) -> Path:  # fmt: skip
    """`events`: what to add to the record of a round; `names` of the clients, in a deployment.

    `away`: by round, who did not answer when it was tested.
    """
    away = away or {}
    rng = np.random.default_rng(seed)
    (path / "history").mkdir(parents=True)
    rounds = 2 * evaluations
    config = {"method": method, "data": "synthetic", "setting": "ideal" if ideal else "hetero", "seed": seed,
              "rounds": rounds, "tested": "adapted", "epochs": 1, "batch": 10}  # fmt: skip
    (path / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=True))
    r = np.ones(clients) if ideal else np.linspace(0.01, 1, clients)
    skill = rng.uniform(0.3, 0.6, clients)
    lines, kept = [], min(clients, 1000)
    scores = np.zeros((3, clients))
    for rnd in range(1, rounds + 1):
        record: dict[str, Any] = {
            "round": rnd, "train_loss": 1 / rnd, "rejected": [], "missing": [],
            "participants": list(range(0, clients, max(2, clients // 500))),
            "bytes_down": 10**6, "bytes_up": 10**6, "seconds": 1.5,
        }  # fmt: skip
        if rnd % 2 == 0:
            scores = np.round(np.stack([skill + 0.3 * rnd / rounds + d for d in (0.1, 0, 0.05)]), 2)
            means = {"test_accuracy": float(scores[0].mean()), "val_accuracy": float(scores[0].mean())}
            record |= means | {"rules": {k: {"test_accuracy": float(s.mean())} for k, s in
                                         zip(RULES_OF_TESTING, scores, strict=True)}}  # fmt: skip
            record["untested"] = away.get(rnd, [])
            arrays: dict[str, Any] = {"client": np.arange(kept, dtype=np.int32), "alpha": np.linspace(0, 1, kept),
                      "loss": 1 - scores[0][:kept]}  # fmt: skip
            arrays |= {k: s[:kept].astype(np.float32) for k, s in zip(RULES_OF_TESTING, scores, strict=True)}
            if network:
                encoded = rng.normal(size=(kept, 64)) + 3 * rng.normal(size=(3, 64))[np.arange(kept) % 3]
                encoded /= np.linalg.norm(encoded, axis=1, keepdims=True)
                arrays |= {"embeddings": encoded, "encoded": encoded.astype(np.float32),
                           "tau": np.array([0.2, 0.1]), "tau_layers": np.array(["conv1", "head.weight"])}  # fmt: skip
            if history:
                here = ~np.isin(np.arange(kept), away.get(rnd, []))
                arrays = {k: v if k.startswith("tau") else v[here] for k, v in arrays.items()}
                np.savez(path / "history" / f"round-{rnd:07}.npz", **arrays)
        lines.append(json.dumps(record | (events or {}).get(rnd, {})) + "\n")
    (path / "rounds.jsonl").write_text("".join(lines))
    if history:
        counts = np.zeros((kept, classes), np.int32)
        counts[np.arange(kept), np.arange(kept) % classes] = 60
        counts[np.arange(kept), (np.arange(kept) + 1) % classes] += 40
        np.savez(path / "history" / "clients.npz", client=np.arange(kept), labels=counts)
        about = {"clients_tested": clients, "clients_kept": kept, "evaluations_kept": "all",
                 "forward_multiply_adds_of_a_step": {"1": 10**6}, "bytes_received_of_a_round": {"1": 4000}}  # fmt: skip
        (path / "history" / "about.json").write_text(json.dumps(about))
    with (path / "clients.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        named = ["name"] if names else []
        rows.writerow(("client", *named, "r", "width", "share", "n_train", "n_val", "n_test", "val_accuracy",
                       "test_accuracy", "alpha", *RULES_OF_TESTING))  # fmt: skip
        for i in range(clients):
            there = i not in away.get(rounds, [])
            scored: list[Any] = [float(s[i]) if there else "" for s in scores]
            name, alpha = [names[i]] if names else [], 1.0 if there else ""
            rows.writerow([i, *name, r[i], "1", r[i], 80, 10, 10, scored[0], scored[0], alpha, *scored])
    if finished:
        (path / "summary.json").write_text(json.dumps({"best_round": rounds, "config_hash": "abc"}))
    return path


def two_methods(folder: Path) -> Path:
    """The page of two runs in which an update was missing and one was rejected."""
    late = {3: {"missing": [1]}, 4: {"rejected": [{"client": 2, "reason": "NaN in <b>head</b>"}]}}
    for name in ("pa3dfl", "fedavg"):
        write_run(folder / name, name, clients=20, network=name == "pa3dfl", events=late)
    return page.write([folder], folder / "a.html")


def data_of(file: Path) -> Any:
    """What a page shows, as its charts get it."""
    [packed_data] = re.findall(r'unpack\("([^"]+)"\)\);add', file.read_text())[:1]
    return json.loads(zlib.decompress(base64.b64decode(packed_data)))
