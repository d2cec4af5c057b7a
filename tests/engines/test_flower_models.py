"""A simulation by Flower gives its clients' models, and lets newcomers join, as the sequential engine does."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from flwr.app import Message

import pa3dfl
from conftest import stopped_in, write_data
from pa3dfl.core.errors import UserError
from pa3dfl.engines.flower import simulation
from pa3dfl.engines.flower.engine import Flower, content, record
from pa3dfl.engines.flower.node import answer
from pa3dfl.experiments import api
from pa3dfl.experiments.export import export, opened
from pa3dfl.federation.remake import Remade, recorded, remade
from pa3dfl.methods import registry
from pa3dfl.runs.format import RunDirectory
from postbox import Postbox

TINY = {
    "model": "cnn-fashion", "clients": 6, "per_round": 2, "epochs": 1, "batch": 10, "lr": 0.05, "rounds": 4,
    "eval_every": 1, "threads": 1, "setting": "levels:1/4,1/16,1/256", "device": "cpu", "patience": 9,
}  # fmt: skip


class Here(Postbox):
    """The nodes of a simulation, in this process."""

    def __init__(self, clients: int, *_: Any) -> None:
        super().__init__()
        self.clients = clients

    @property
    def grid(self) -> Any:
        return self

    def nodes(self) -> dict[int, int]:
        return {i: 100 + i for i in range(self.clients)}

    def heard(self, *_: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [Message(record(*answer(simulation.SimulatedNode(), *content(m))), reply_to=m) for m in self.sent(ids)]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(simulation, "Simulation", Here)
    simulation._built.cache_clear()
    yield
    simulation._built.cache_clear()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data"))


def run(data: str, out: Path, **given: Any) -> Path:
    options = {"hidden": 8} if given.get("method", "pa3dfl") == "pa3dfl" else {}
    api.run(**(TINY | options | {"data": data, "out": str(out), "engine": "flower"} | given))
    return out


def models(path: Path) -> dict[int, Remade]:
    _, _, federation = opened(path, None)
    return {m.client.id: m for m in remade(federation, sorted(recorded(federation)))}


@pytest.mark.parametrize(
    ("method", "rule"),
    [(m, "adapted") for m in registry()] + [(m, r) for r in ("received", "kept") for m in ("pa3dfl", "local-only")],
)
def test_every_tested_model_is_made_again(method: str, rule: str, data: str, tmp_path: Path) -> None:
    """The bits equal those of the sequential engine, including losses."""
    same = {"method": method, "tested": rule}
    one, ray = (models(run(data, tmp_path / e, engine=e, **same)) for e in ("sequential", "flower"))
    assert one.keys() == ray.keys() == set(range(6))
    for i, model in ray.items():
        assert model.score == model.recorded == one[i].score
        assert model.round == one[i].round
        assert model.tree.keys() == one[i].tree.keys()
        assert all(torch.equal(v, one[i].tree[k]) for k, v in model.tree.items())


def test_the_best_states_outlive_later_rounds(data: str, tmp_path: Path) -> None:
    """With a vanishing step nothing improves on round 2: nodes keep its states beside the newest, no others."""
    path = run(data, tmp_path / "run", method="ditto", rounds=9, per_round=6, eval_every=2, lr=1e-12)
    again = models(path)
    assert {m.round for m in again.values()} == {2}
    assert all(m.score == m.recorded for m in again.values())
    for i in range(6):
        names = {int(f.name.split(".")[1]) for f in (path / "nodes" / str(i)).glob("private.*")}
        assert names == {2, 6, 7, 8, 9}


def test_the_best_states_outlive_a_stop(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"method": "ditto", "rounds": 8, "per_round": 6, "eval_every": 2, "lr": 1e-12}

    with stopped_in(monkeypatch, Flower, "train", 7):
        run(data, tmp_path / "run", **said)
    api.resume(tmp_path / "run")
    assert {m.round for m in models(tmp_path / "run").values()} == {2}


def test_a_moved_run_gives_networks_and_files(data: str, tmp_path: Path) -> None:
    run(data, tmp_path / "run", method="ditto", rounds=2)
    (tmp_path / "run").rename(tmp_path / "moved")
    records = list(export(tmp_path / "moved"))
    rows = RunDirectory(tmp_path / "moved").read_clients()
    assert [r["file_accuracy"] for r in records] == [r["test_accuracy"] for r in rows]
    assert isinstance(pa3dfl.load(tmp_path / "moved").model(3), torch.nn.Module)
    shutil.rmtree(tmp_path / "moved" / "nodes")
    with pytest.raises(UserError, match=r"private state of round \d is not in .*: restore the run's folder"):
        list(export(tmp_path / "moved"))


@pytest.mark.parametrize("method", ["pa3dfl", "ditto", "local-only"])
def test_newcomers_of_a_simulation_are_those_of_the_sequential_engine(method: str, data: str, tmp_path: Path) -> None:
    said = {"method": method, "rounds": 2, "eval_every": 2, "newcomers": "1,4", "newcomer_rounds": 2}
    for engine in ("sequential", "flower"):
        run(data, tmp_path / engine, engine=engine, **said)
    for name in ("newcomers.csv", "clients.csv"):
        assert (tmp_path / "sequential" / name).read_bytes() == (tmp_path / "flower" / name).read_bytes()
    one, ray = ({r["client"]: r for r in export(tmp_path / engine, [1, 4])} for engine in ("sequential", "flower"))
    for i in (1, 4):
        assert Path(one[i]["path"]).read_bytes() == Path(ray[i]["path"]).read_bytes()


def test_paths_do_not_depend_on_where_a_node_works(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{i % 5},{i % 3},{i % 2}" for i in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,who,y", *rows]))
    (tmp_path / "late.txt").write_text("2\n")
    columns = {"label_column": "y", "client_column": "who", "model": "mlp-tabular"}
    work = simulation.SimulatedNode.local_run

    def elsewhere(self: Any, order: Any) -> Any:
        with monkeypatch.context() as m:
            m.chdir("/")
            return work(self, order)

    monkeypatch.setattr(simulation.SimulatedNode, "local_run", elsewhere)
    run("table.csv", Path("run"), clients=None, rounds=1, newcomers="late.txt", newcomer_rounds=1, **columns)
    rows = RunDirectory(Path("run")).read_clients()
    assert [r["file_accuracy"] for r in export(Path("run"), [0, 1])] == [r["test_accuracy"] for r in rows[:2]]
