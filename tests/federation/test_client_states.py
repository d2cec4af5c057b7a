"""Where clients' private state lives, and that nothing else depends on it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.experiments import api
from pa3dfl.federation import federation
from pa3dfl.federation.checkpoint import Checkpoints
from pa3dfl.federation.client_states import CPU, ClientStates, available_memory, memory_limits


def tree(n: int, value: float = 1.0) -> Tree:
    """A state of 4n bytes."""
    return {"w": torch.full((n,), float(value))}


def files(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir()) if folder.exists() else []


def test_a_state_goes_to_the_fastest_memory_with_space(tmp_path: Path) -> None:
    near = torch.device("meta")  # stands for a GPU
    kept = ClientStates(tmp_path / "p", {near: 40, CPU: 80})
    for i in range(4):
        kept[i] = tree(10, i)
    assert [kept[i]["w"].device.type for i in range(4)] == ["meta", "cpu", "cpu", "cpu"]
    assert files(tmp_path / "p") == ["client-3.safetensors"]
    assert [kept[i]["w"][0].item() for i in (1, 2, 3)] == [1, 2, 3]
    assert sorted(kept) == [0, 1, 2, 3]
    assert len(kept) == 4


def test_a_full_memory_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = ClientStates(tmp_path / "p", {})
    for value in range(3):
        kept[0] = tree(10, value)
    assert caplog.text.count("memory is full") == 1


def test_replaced_states_free_their_memory(tmp_path: Path) -> None:
    kept = ClientStates(tmp_path / "p", {CPU: 40})
    kept[0] = tree(10, 1)
    kept[1] = tree(10, 2)
    assert files(tmp_path / "p") == ["client-1.safetensors"]
    kept[0] = tree(5, 3)
    kept[1] = tree(5, 4)
    assert files(tmp_path / "p") == []
    assert (kept[0]["w"].tolist(), kept[1]["w"].tolist()) == ([3.0] * 5, [4.0] * 5)
    del kept[0]
    assert kept.get(0) is None
    assert kept.free == {CPU: 20}


def test_files_of_an_earlier_process_are_not_read(tmp_path: Path) -> None:
    ClientStates(tmp_path / "p", {})[0] = tree(10)
    assert files(tmp_path / "p")
    assert 0 not in ClientStates(tmp_path / "p", {})
    assert files(tmp_path / "p") == []


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a file, not a folder")
    with pytest.raises(UserError, match=r"private state of client 0 could not be written to .*p: File exists"):
        ClientStates(tmp_path / "p", {})[0] = tree(10)


def test_memory_limits_of_this_machine() -> None:
    assert memory_limits(CPU).keys() == {CPU}
    assert 2**20 < memory_limits(CPU)[CPU] <= available_memory()


@pytest.mark.parametrize("room", [0, 300_000])
def test_results_do_not_depend_on_where_states_are(room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no state in memory, or only some, the bits are the same."""
    given: dict[str, Any] = {
        "method": "ditto", "data": "fashion-mnist-10k", "clients": 40, "per_round": 3, "epochs": 1, "eval_every": 2,
        "setting": "levels:1/256", "threads": 1, "device": "cpu", "eval_clients": 4,
    }  # fmt: skip
    api.run(**given, rounds=4, out=str(tmp_path / "near"))
    monkeypatch.setattr(federation, "memory_limits", lambda device: {device: room})
    api.run(**given, rounds=4, out=str(tmp_path / "far"))
    assert files(tmp_path / "far" / "private")
    near, far = (Checkpoints(tmp_path / name / "checkpoints").load(CPU) for name in ("near", "far"))
    assert near is not None
    assert far is not None
    for ours, theirs in ((near.server, far.server), *((near.private[i], far.private[i]) for i in near.private)):
        assert all(torch.equal(ours[k], theirs[k]) for k in ours)
