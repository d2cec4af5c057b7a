"""The map of clients, and their order in the heat map."""

import base64

import numpy as np
import pytest

from pa3dfl.runs.page.network import clustered, cosines, network, packed

pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")


@pytest.mark.parametrize("groups", range(2, 9))
def test_similar_clients_stand_together(groups: int) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        group = rng.permutation(np.arange(48) % groups)
        encoded = rng.normal(size=(groups, 8))[group] + 0.1 * rng.normal(size=(48, 8))
        found = clustered(cosines(encoded))
        assert sorted(found) == list(range(48))
        assert (np.diff(group[found]) != 0).sum() == groups - 1


def test_the_most_similar_ends_of_clusters_meet() -> None:
    """Directions on a quarter of a circle come back in the order of their angles."""
    angles = np.random.default_rng(0).permutation([0, 1, 2, 10, 11, 12, 40, 41, 90])
    encoded = np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], 1)
    found = angles[clustered(cosines(encoded))].tolist()
    assert found in (sorted(found), sorted(found)[::-1])
    assert clustered(np.full((3, 3), np.nan)) in ([0, 1, 2], [2, 1, 0], [1, 0, 2])
    assert clustered(np.ones((1, 1))) == [0]
    assert base64.b64decode(packed(np.array([[1.0, -1.0], [-1.0, 1.0]]))) == bytes([255, 0, 255])


def test_a_client_that_missed_an_evaluation_has_no_place_on_the_map_there() -> None:
    first = {"client": np.array([0, 1, 2]), "encoded": np.array([[0.0, 0.0], [5.0, 0.0], [2.0, 0.0]])}
    last = {"client": np.array([2, 0]), "encoded": np.array([[4.0, 0.0], [0.0, 0.0]])}
    found = network([(1, first), (2, last)], [0, 1, 2])
    assert found is not None
    (a, b, c), (d, gone, f) = (m["xy"] for m in found["map"])
    assert gone is None
    assert sorted(found["clients"]) == [0, 2]
    assert [abs(v[0]) for v in (a, b, c, d, f)] == [2000, 3000, 0, 2000, 2000]  # the centre of the last is (2, 0)
    assert [m["round"] for m in found["matrices"]] == [1, 2]
    assert network([(2, last)], [1]) is None
    assert network([(2, last)], [2]) is None  # nobody is near


def test_one_number_for_each_client_has_a_map_too() -> None:
    found = network([(1, {"client": np.array([0, 1]), "encoded": np.array([[0.0], [2.0]])})], [0, 1])
    assert found is not None
    assert sorted(found["map"][0]["xy"]) == [[-1000, 0], [1000, 0]]
