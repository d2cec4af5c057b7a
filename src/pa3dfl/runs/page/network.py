"""What a hyper-network has learned about clients, in few bytes: positions on a map, similarities, temperatures."""

import base64
from typing import Any

import numpy as np

CLIENTS = 100
MATRICES = 6


def network(history: list[tuple[int, dict[str, np.ndarray]]], ids: list[int]) -> dict[str, Any] | None:
    """None for a method without a hyper-network."""
    having = [(rnd, arrays) for rnd, arrays in history if "encoded" in arrays]
    if not having:
        return None
    place = {i: k for k, i in enumerate(having[-1][1]["client"].tolist())}
    rows = [place[i] for i in ids]
    last = having[-1][1]["encoded"][rows]
    centre = last.mean(0)
    # One plane for all evaluations, so that points move and the view does not.
    plane = np.linalg.svd(last - centre, full_matrices=False)[2][:2].T
    few = rows if len(rows) <= CLIENTS else [rows[i] for i in np.linspace(0, len(rows) - 1, CLIENTS).astype(int)]
    times = sorted({round(i) for i in np.linspace(0, len(having) - 1, min(MATRICES, len(having)))})
    order = clustered(cosines(having[-1][1]["encoded"][few]))
    attention = "tau" in having[-1][1]
    return {
        "map": [
            {"round": rnd, "xy": ((arrays["encoded"][rows] - centre) @ plane * 1000).round().astype(int).tolist()}
            for rnd, arrays in having
            if len(arrays["encoded"]) == len(place)
        ],
        "clients": [rows.index(few[k]) for k in order],
        "matrices": [
            {"round": rnd, "cosines": packed(cosines(arrays["encoded"][[few[k] for k in order]]))}
            for rnd, arrays in (having[t] for t in times)
            if len(arrays["encoded"]) == len(place)
        ],
        "layers": having[-1][1]["tau_layers"].tolist() if attention else [],
        "tau": [[rnd, arrays["tau"].round(4).tolist()] for rnd, arrays in having] if attention else [],
    }


def cosines(encoded: np.ndarray) -> np.ndarray:
    unit = encoded / np.maximum(np.linalg.norm(encoded, axis=1, keepdims=True), 1e-12)
    similar: np.ndarray = unit @ unit.T
    return similar


def clustered(similarity: np.ndarray) -> list[int]:
    """An order with similar clients side by side: by the second eigenvector of the graph Laplacian."""
    weights = np.exp(4 * similarity)
    laplacian = np.diag(weights.sum(1)) - weights
    order = np.argsort(np.linalg.eigh(laplacian)[1][:, min(1, len(weights) - 1)], kind="stable")
    return [int(i) for i in order]


def packed(similarity: np.ndarray) -> str:
    """The upper triangle in bytes, from -1 as 0 to 1 as 255."""
    upper = similarity[np.triu_indices(len(similarity))]
    return base64.b64encode(((upper.clip(-1, 1) + 1) * 127.5).round().astype(np.uint8).tobytes()).decode()
