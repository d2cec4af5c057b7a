"""The networks in `examples/`, which import nothing from this package, on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from pa3dfl import cli

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["pa3dfl", "heterofl", "fedrolex", "flanc"])
@pytest.mark.parametrize("network", ["own_lstm", "own_transformer"])
def test_example_networks_train_at_three_widths(
    network: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal seeds give equal numbers, though both networks have dropout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 50, (72, 8)), np.arange(72) % 4
    x[:, 1] = x[:, 5] = 1 + y
    np.savez(tmp_path / "words.npz", x=x, y=y)
    run = ("run", "--method", name, "--model", f"{network}:make", "--data", "words.npz", "--clients", "3",
           "--p-min", "1/4", "--setting", "list:1,1/4,1/16", "--rounds", "2", "--per-round", "3", "--epochs", "1",
           "--batch", "8", "--lr", "0.1", "--device", "cpu", "--threads", "2")  # fmt: skip
    losses = []
    for again in "ab" if name == "pa3dfl" else "a":
        assert cli.main([*run, "--out", again]) == 0
        records = [json.loads(line) for line in (tmp_path / again / "rounds.jsonl").read_text().splitlines()]
        losses.append([r["train_loss"] for r in records])
        rows = (tmp_path / again / "clients.csv").read_text()
        assert all(w in rows for w in ("1/2", "1/4"))
    assert losses[0] == losses[-1]
    assert np.isfinite(losses).all()


def test_dropout_is_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import own_lstm
    import torch

    from pa3dfl.models import Model
    from pa3dfl.models.model import FULL

    model = Model(own_lstm.make, "own", (8,), 4)
    params, x = model.init(FULL, 0), torch.ones(2, 8, dtype=torch.int64)
    tested = model(params, x, FULL)
    assert torch.equal(tested, model(params, x, FULL))
    with model.drawing(3):
        trained = model(params, x, FULL)
    with model.drawing(3):
        assert torch.equal(trained, model(params, x, FULL))
    assert not torch.equal(tested, trained)
