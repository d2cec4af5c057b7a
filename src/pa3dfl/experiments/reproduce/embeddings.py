"""What Pa3dFL's hyper-network has learned about clients: a map of their encoded embeddings, and their similarities."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch.nn.functional as F

from pa3dfl.core.options.config import Config
from pa3dfl.core.tree import Tree
from pa3dfl.core.words import counted
from pa3dfl.experiments.reproduce import partitions, records
from pa3dfl.experiments.reproduce.drawing import panels, save
from pa3dfl.federation.checkpoint import CURRENT
from pa3dfl.methods.common.hypernetwork import HyperNetwork, Output

PREFIX = "hn/"


def record(config: Config, checkpoints: Path) -> dict[str, Any] | None:
    """Encoded embeddings of length one, from the last checkpoint; None if the method has none."""
    tree = _small_part(checkpoints)
    if "embeddings" not in tree or "tau" not in tree:
        return None
    d, h, depth = (config.options[k] for k in ("embedding", "hidden", "depth"))
    encoder = HyperNetwork({"any": Output((1,), 1.0)}, d, h, depth, 1.0, 1.0, 1.0, 1.0, 1.0, attention=False)
    encoded = F.normalize(encoder.mixes(tree, list(range(len(tree["embeddings"]))))[0], dim=1)
    counts = partitions.counts(config)
    return {
        "data": config.data,
        "setting": config.setting,
        "seed": config.seed,
        "rounds": config.rounds,
        "dominant": counts.argmax(1).tolist(),
        "tau": [round(t, 3) for t in tree["tau"].tolist()],
        "encoded": [[round(v, 3) for v in row] for row in encoded.tolist()],
    }


def _small_part(checkpoints: Path) -> Tree:
    """Embeddings and encoder, without the decoders, which have gigabytes."""
    state = checkpoints / CURRENT
    server = json.loads(state.read_text())["server"] if state.is_file() else None
    if server is None:
        return {}
    with safetensors.safe_open(checkpoints / server, framework="pt") as file:
        names = [k for k in file.keys() if k.startswith(PREFIX) and not k.startswith(PREFIX + "decoder.")]  # noqa: SIM118
        return {k.removeprefix(PREFIX): file.get_tensor(k).float() for k in names}


def pictures(results: Path, folder: Path) -> list[tuple[str, Path]]:
    """A map and a heat map side by side for each recorded run, coloured and sorted by dominant class."""
    drawn = []
    for path in sorted((results / "embeddings").glob("*.json")):
        found: dict[str, Any] = records.read(path) or {}
        rounds = counted(found["rounds"], "round")
        title = f"{Path(found['data']).stem}, {found['setting']}, seed {found['seed']}, {rounds}"
        encoded, dominant = np.array(found["encoded"]), np.array(found["dominant"])
        drawn.append((title, picture(encoded, dominant, title, folder / f"embeddings-{path.stem}.png")))
    return drawn


def picture(encoded: np.ndarray, dominant: np.ndarray, title: str, out: Path) -> Path:
    fig, [left, right] = panels(1, 2, (4.8, 4.2))
    flat = plane(encoded)
    points = left.scatter(flat[:, 0], flat[:, 1], c=dominant, cmap="turbo", s=24)
    left.set(title="first two principal components")
    fig.colorbar(points, ax=left, label="dominant class")
    order = np.argsort(dominant, kind="stable")
    similarity = (encoded @ encoded.T)[np.ix_(order, order)]
    shown = right.imshow(similarity, cmap="viridis", interpolation="nearest")
    right.grid(False)
    right.set(title="similarity, clients by dominant class", xlabel="client", ylabel="client")
    fig.colorbar(shown, ax=right)
    fig.suptitle(title)
    return save(fig, out)


def plane(encoded: np.ndarray) -> np.ndarray:
    """Coordinates on the first two principal components; the larger entry of each is made positive."""
    centred = encoded - encoded.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(axes[:2][np.arange(2), np.abs(axes[:2]).argmax(1)])[:, None]
    projected: np.ndarray = centred @ axes.T
    return projected
