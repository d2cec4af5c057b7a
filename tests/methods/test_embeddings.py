"""Embedding tables: a row is learned from those who have its token, and a row that nobody saw keeps its value."""

import numpy as np
import pytest
import torch

from conftest import build, on_task
from pa3dfl.data import Arrays
from pa3dfl.engines import Round
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import find

SEEN = 20


@pytest.mark.parametrize("name", ["fedavg", "heterofl", "fedrolex", "flanc", "pa3dfl"])
def test_rows_of_unseen_tokens_keep_their_value(name: str) -> None:
    rng = np.random.default_rng(0)
    arrays = Arrays(rng.integers(0, SEEN, (80, 5)), np.arange(80) % 4, 4)
    method = find(name)()
    task = build(method, arrays, model="lstm-text", weight_decay=0.0, setting="list:1,1/4,1/4,1/4", p_min="1/4")
    server = on_task(task, method.init_server(task))
    before = {k: v.clone() for k, v in server.items() if k.endswith("embedding.weight")}
    updates = Sequential().train(Round(method, task, server, {}, task.clients, 1))
    after = method.aggregate(task, server, updates, 1)
    assert before
    for k, table in before.items():
        torch.testing.assert_close(after[k][SEEN:], table[SEEN:], rtol=0, atol=1e-15)  # means round
        assert not torch.allclose(after[k][:SEEN], table[:SEEN])
