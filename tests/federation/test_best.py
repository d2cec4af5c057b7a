"""The best evaluated state: from it every tested model is made again, to the same bits."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import stopped_in, write_data
from pa3dfl.core.errors import UserError
from pa3dfl.data import load
from pa3dfl.engines.sequential import Sequential
from pa3dfl.experiments import api
from pa3dfl.federation.checkpoint import Checkpoints
from pa3dfl.federation.federation import Federation
from pa3dfl.federation.remake import Remade, remade
from pa3dfl.methods import assembly, registry
from pa3dfl.runs.format import RunDirectory

TINY = {
    "model": "cnn-fashion", "clients": 6, "per_round": 2, "epochs": 1, "batch": 10, "lr": 0.05, "rounds": 3,
    "eval_every": 1, "threads": 1, "setting": "levels:1/4,1/16,1/256", "device": "cpu", "patience": 9,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data"))


def run(data: str, out: Path, **given: Any) -> Path:
    options = {"hidden": 8} if given.get("method", "pa3dfl") == "pa3dfl" else {}
    api.run(**(TINY | options | {"data": data, "out": str(out)} | given))
    return out


def again(path: Path) -> Federation:
    """The federation of a run, built from its files only."""
    given = RunDirectory(path).read_config()
    given.pop("data_fingerprint", None)
    config = assembly.configure(given)
    return api.build(config, load(config.data), RunDirectory(path))


def all_of(path: Path) -> dict[int, Remade]:
    federation = again(path)
    return {m.client.id: m for m in remade(federation, range(6))}


@pytest.mark.parametrize(
    ("method", "rule"),
    [(m, "adapted") for m in registry()]
    + [(m, rule) for rule in ("received", "kept") for m in ("pa3dfl", "ditto", "local-only", "fedrolex")],
)
def test_every_tested_model_can_be_computed_again(method: str, rule: str, data: str, tmp_path: Path) -> None:
    """Its accuracies, its losses to the last bit, and its α are those of the evaluation; the run is unchanged by it."""
    path = run(data, tmp_path / "run", method=method, tested=rule)
    before = {f: f.read_bytes() for f in path.rglob("*") if f.is_file()}
    models = all_of(path)
    assert len(models) == 6
    for model in models.values():
        assert (model.score.val_loss, model.score.alpha) == (model.recorded.val_loss, model.recorded.alpha)
        assert model.score == model.recorded
    rows = RunDirectory(path).read_clients()
    assert {r["client"]: r["test_accuracy"] for r in rows} == {i: m.score.test_accuracy for i, m in models.items()}
    assert before == {f: f.read_bytes() for f in path.rglob("*") if f.is_file()}


def test_the_best_state_outlives_later_rounds(data: str, tmp_path: Path) -> None:
    """With a vanishing step nothing improves on round 1: its state stays, beside the last two."""
    path = run(data, tmp_path / "run", method="ditto", rounds=5, lr=1e-12)
    names = {f.name.removesuffix(".safetensors") for f in (path / "checkpoints").glob("server*")}
    assert names == {"server.1", "server.4", "server.5"}
    assert {m.round for m in all_of(path).values()} == {1}
    assert all(m.score == m.recorded for m in all_of(path).values())


def test_rare_checkpoints_keep_the_best(data: str, tmp_path: Path) -> None:
    path = run(data, tmp_path / "run", method="fedavg", rounds=4, lr=1e-12, checkpoint_every=100)
    assert {m.round for m in all_of(path).values()} == {1}


def test_without_sharing_every_client_has_a_best_round_of_its_own(data: str, tmp_path: Path) -> None:
    path = run(data, tmp_path / "run", method="local-only", rounds=5, per_round=1, setting="levels:1/256", lr=0.2)
    models = all_of(path)
    assert len({m.round for m in models.values()}) > 1
    assert all(m.score == m.recorded for m in models.values())


@pytest.mark.parametrize("method", ["pa3dfl", "local-only"])
def test_a_resumed_run_keeps_the_same_best_states(
    method: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, path = run(data, tmp_path / "whole", method=method), tmp_path / "stopped"
    with stopped_in(monkeypatch, Sequential, "evaluate", 2):
        run(data, path, method=method)
    api.resume(path)
    a, b = (Checkpoints(p / "checkpoints") for p in (whole, path))
    assert a.facts() is not None
    assert b.facts() is not None
    assert a.best == b.best
    assert {f.name for f in a.folder.iterdir()} == {f.name for f in b.folder.iterdir()}


@pytest.mark.parametrize(("engine", "threads", "method"), [("threaded", 2, "fedavg"), ("sequential", 1, "pa3dfl")])
def test_models_of_some_clients_can_be_computed_alone(
    engine: str, threads: int, method: str, data: str, tmp_path: Path
) -> None:
    """Two threads train two clients at once; downloads are made for many clients at once."""
    path = run(data, tmp_path / engine, engine=engine, threads=threads, method=method, rounds=1)
    for some in ([4], [1, 5]):
        models = list(remade(again(path), some))
        assert sorted(m.client.id for m in models) == some
        assert all(m.score == m.recorded for m in models)


def test_missing_states_are_refused(data: str, tmp_path: Path) -> None:
    path = run(data, tmp_path / "run", method="fedavg", rounds=1, eval_clients=2)
    untested = next(i for i in range(6) if i not in {r["client"] for r in RunDirectory(path).read_clients()})
    with pytest.raises(UserError, match=f"no best state of client {untested}: it was not evaluated"):
        list(remade(again(path), [untested]))
    manifest = path / "checkpoints" / "state.json"
    said = json.loads(manifest.read_text())
    tested = int(next(iter(said["best"])))
    (path / "checkpoints" / said["best"][str(tested)][1]).write_bytes(b"torn")
    with pytest.raises(UserError, match=f"best state of client {tested} cannot be read: server.1"):
        list(remade(again(path), [tested]))
    del said["best"]
    manifest.write_text(json.dumps(said))
    with pytest.raises(UserError, match="begun by an earlier version"):
        list(remade(again(path), [tested]))
    manifest.write_text("{}")
    with pytest.raises(UserError, match="not the manifest of a checkpoint"):
        list(remade(again(path), [tested]))
    manifest.unlink()
    with pytest.raises(UserError, match="no evaluation yet"):
        list(remade(again(path), [tested]))


def test_the_best_state_of_an_earlier_version_is_that_of_later_rounds(data: str, tmp_path: Path) -> None:
    """A run of an earlier version continues, and has a best state from its next improvement on."""
    path = run(data, tmp_path / "run", method="fedavg", rounds=2)
    manifest = path / "checkpoints" / "state.json"
    said = json.loads(manifest.read_text())
    for best in said["facts"]["bests"].values():
        del best["rounds"]
        best["val"] = -1.0
    manifest.write_text(json.dumps({k: v for k, v in said.items() if k not in ("best", "models")}))
    config = (path / "config.yaml").read_text().replace("rounds: 2", "rounds: 3")
    (path / "config.yaml").write_text(config)
    api.resume(path)
    assert {m.round for m in all_of(path).values()} == {3}
