"""The notebooks of `examples/` are executed, on small settings."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: notebooks are not tested")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: notebooks are not tested")
pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")
pytest.importorskip("pandas", reason="pandas is not installed: notebooks are not tested")

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["quickstart", "pa3dfl_in_pictures"])
def test_a_notebook_runs_and_shows_the_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SMALL", "OMP_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbformat.validate(book)
    nbclient.NotebookClient(book, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [out for cell in book.cells if cell.cell_type == "code" for out in cell.outputs]
    shown: list[Any] = [out.get("data", {}).get("text/html", "") for out in outputs]
    assert any(text.startswith("<iframe") and "Pa3dFL, FedAvg on fashion-mnist-10k" in text for text in shown)
    assert not [out for out in outputs if out.output_type == "stream" and out.name == "stderr"]
    if name == "quickstart":
        [exported] = (tmp_path / "models").rglob("*.safetensors")
        assert exported.stat().st_size > 1000
    else:
        assert sum("image/png" in out.get("data", {}) for out in outputs) == 6


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda file: file.name)
def test_a_notebook_is_kept_small(file: Path) -> None:
    """Without stored outputs, which nobody can review."""
    assert file.stat().st_size < 300_000
