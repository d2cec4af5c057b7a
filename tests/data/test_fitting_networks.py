"""Networks for a user's own data: the default, and those that do not fit."""

import numpy as np
import pytest

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import identity
from pa3dfl.data.arrays import Arrays
from pa3dfl.methods import assembly


@pytest.mark.parametrize(
    ("x", "model", "better"),
    [
        (np.ones((20, 8), np.float32), "cnn-fashion", "mlp-tabular"),
        (np.ones((20, 8), np.int32), "cnn-fashion", "lstm-text"),
        (np.ones((20, 3, 8), np.float32), "cnn-fashion", "cnn-sensor"),
        (np.ones((20, 3, 8, 8), np.uint8), "cnn-sensor", "cnn-fashion"),
    ],
)
def test_a_network_that_does_not_fit_the_data_is_refused(x: np.ndarray, model: str, better: str) -> None:
    config = assembly.configure({"data": "own.npz", "model": model, "method": "fedavg", "clients": 2})
    with pytest.raises(UserError, match=f"model '{model}'.*; for this data try --model {better}"):
        assembly.make_task(config, assembly.make_method(config), Arrays(x, np.arange(20) % 2, 2))


def test_tokens_beyond_the_embedding_are_refused() -> None:
    config = assembly.configure({"data": "own.npz", "model": "lstm-text", "method": "fedavg", "clients": 2})
    x, y = np.arange(80).reshape(20, 4), np.arange(20) % 2
    task = assembly.make_task(config, assembly.make_method(config), Arrays(x, y, 2))
    assert task.model.whole_numbers
    for low, high in ((0, 256), (-1, 3)):
        x[0, 0], x[1, 1] = low, high
        said = f"tokens from {low} to {max(high, 79)}, and model 'lstm-text' knows 0 to 255: renumber them"
        with pytest.raises(UserError, match=said):
            assembly.make_task(config, assembly.make_method(config), Arrays(x, y, 2))


def test_tables_have_a_default_network() -> None:
    assert assembly.configure({"data": "folder/t.csv"}).model == "mlp-tabular"
    assert assembly.configure({"data": "own.npz"}).model == "cnn-fashion"


def test_unused_later_options_do_not_change_the_hash() -> None:
    plain = assembly.configure({"data": "t.csv"})
    assert "label_column" not in identity(plain)
    assert plain.hash() != assembly.configure({"data": "t.csv", "label_column": "y"}).hash()
