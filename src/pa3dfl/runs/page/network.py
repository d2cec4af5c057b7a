"""What a hyper-network has learned about clients, as few bytes: positions on a map, similarities, temperatures."""

import base64
from typing import Any

import numpy as np

CLIENTS = 100
MATRICES = 6


def network(history: list[tuple[int, dict[str, np.ndarray]]], ids: list[int]) -> dict[str, Any] | None:
    """None for a method without a hyper-network, and for one client, who has no neighbour."""
    having = [(rnd, arrays) for rnd, arrays in history if "encoded" in arrays]
    if not having:
        return None
    last = having[-1][1]
    there = [k for k, row in enumerate(rows(last, ids)) if row is not None]
    if len(there) < 2:
        return None
    encoded = encodings(last, [ids[k] for k in there])
    centre = encoded.mean(0)
    # One plane for all evaluations, so that points move and the view does not.
    directions = np.linalg.svd(encoded - centre, full_matrices=False)[2][:2].T
    plane = np.pad(directions, ((0, 0), (0, 2 - directions.shape[1])))
    some = np.linspace(0, len(there) - 1, min(CLIENTS, len(there))).astype(int)
    few = [there[some[k]] for k in clustered(cosines(encoded[some]))]
    named = [ids[k] for k in few]
    whole = [(rnd, arrays) for rnd, arrays in having if None not in rows(arrays, named)]
    times = sorted({round(i) for i in np.linspace(0, len(whole) - 1, min(MATRICES, len(whole)))})
    attention = "tau" in last
    return {
        "map": [{"round": rnd, "xy": positions(arrays, ids, centre, plane)} for rnd, arrays in having],
        "clients": few,
        "matrices": [
            {"round": rnd, "cosines": packed(cosines(encodings(arrays, named)))}
            for rnd, arrays in (whole[t] for t in times)
        ],
        "layers": last["tau_layers"].tolist() if attention else [],
        "tau": [[rnd, arrays["tau"].round(4).tolist()] for rnd, arrays in having] if attention else [],
    }


def rows(arrays: dict[str, np.ndarray], ids: list[int]) -> list[int | None]:
    """Where an evaluation holds these clients; None for one that it lacks, such as a node that was away."""
    place = {i: k for k, i in enumerate(arrays["client"].tolist())}
    return [place.get(i) for i in ids]


def encodings(arrays: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    return arrays["encoded"][[row for row in rows(arrays, ids) if row is not None]]


def positions(
    arrays: dict[str, np.ndarray], ids: list[int], centre: np.ndarray, plane: np.ndarray
) -> list[list[int] | None]:
    xy = ((arrays["encoded"] - centre) @ plane * 1000).round().astype(int).tolist()
    return [None if row is None else xy[row] for row in rows(arrays, ids)]


def cosines(encoded: np.ndarray) -> np.ndarray:
    unit = encoded / np.maximum(np.linalg.norm(encoded, axis=1, keepdims=True), 1e-12)
    similar: np.ndarray = unit @ unit.T
    return similar


def clustered(similarity: np.ndarray) -> list[int]:
    """An order with similar clients side by side: clusters are merged by average linkage, most similar ones first."""
    orders = [[k] for k in range(len(similarity))]
    alike = np.nan_to_num(similarity.astype(float), nan=-1.0)
    between = alike.copy()
    np.fill_diagonal(between, -np.inf)
    for _ in orders[1:]:
        a, b = sorted(divmod(int(between.argmax()), len(between)))
        m, n = len(orders[a]), len(orders[b])
        between[a] = between[:, a] = (m * between[a] + n * between[b]) / (m + n)
        between[b] = between[:, b] = -np.inf
        orders[a], orders[b] = end_to_end(orders[a], orders[b], alike), []
    return next((order for order in orders if order), [])


def end_to_end(one: list[int], other: list[int], alike: np.ndarray) -> list[int]:
    """Two orders as one, turned so that the most similar ends meet."""
    ways = [(x, y) for x in (one, one[::-1]) for y in (other, other[::-1])]
    first, second = max(ways, key=lambda way: alike[way[0][-1], way[1][0]])
    return first + second


def packed(similarity: np.ndarray) -> str:
    """The upper triangle in bytes, from -1 as 0 to 1 as 255."""
    upper = similarity[np.triu_indices(len(similarity))]
    return base64.b64encode(((upper.clip(-1, 1) + 1) * 127.5).round().astype(np.uint8).tobytes()).decode()
