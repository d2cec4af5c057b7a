"""What is released: a wheel, built from the sdist, works in an environment that has nothing but its dependencies."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import pa3dfl

ROOT = Path(__file__).parent.parent
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
RUN = ("--rounds", "2", "--clients", "8", "--per-round", "2", "--epochs", "1", "--setting", "levels:1/64",
       "--threads", "1", "--eval-every", "2", "--device", "cpu")  # fmt: skip


def done(*command: object, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built like a release, from a copy without files of earlier builds."""
    pytest.importorskip("build", reason="`build` is not installed: pip install 'pa3dfl[dev]'")
    tree = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    for leftover in (*tree.rglob("*.egg-info"), *tree.rglob("__pycache__")):
        shutil.rmtree(leftover)
    done(sys.executable, "-m", "build", "--no-isolation", cwd=tree)  # an sdist, and a wheel from the sdist
    [sdist] = (tree / "dist").glob("*.tar.gz")
    [wheel] = (tree / "dist").glob("*.whl")
    assert sdist.name == f"pa3dfl-{pa3dfl.__version__}.tar.gz"
    assert wheel.name == f"pa3dfl-{pa3dfl.__version__}-py3-none-any.whl"
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel. It uses the dependencies of this environment: nothing is downloaded."""
    venv = tmp_path_factory.mktemp("venv")
    done(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv)
    python = venv / "bin" / "python"
    done(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, cwd=venv)
    [packages] = venv.glob("lib/python*/site-packages")
    present = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("\n".join(present) + "\n")
    assert Path(done(python, "-c", "import pa3dfl; print(pa3dfl.__file__)", cwd=venv).strip()).is_relative_to(venv)
    return venv


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    source = ROOT / "src"
    files = {str(f.relative_to(source)) for f in (source / "pa3dfl").rglob("*") if f.is_file()}
    expected = {f for f in files if "__pycache__" not in f}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        [licence] = [n for n in archive.namelist() if n.endswith(".dist-info/licenses/LICENSE")]
        assert b"Apache License" in archive.read(licence)
    assert held == expected
    for suffix in (".yaml", ".cu", ".gz", "py.typed"):
        assert any(f.endswith(suffix) for f in held), suffix


def test_the_wheel_works_where_it_is_installed(environment: Path, tmp_path: Path) -> None:
    command = environment / "bin" / "pa3dfl"
    assert done(command, "--version", cwd=tmp_path) == f"pa3dfl {pa3dfl.__version__}\n"
    assert "heterofl" in done(command, "methods", cwd=tmp_path)
    summary = json.loads(done(command, "run", *RUN, "--json", "--out", "run", cwd=tmp_path))
    assert summary["rounds"] == 2
    assert summary["version"] == pa3dfl.__version__
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 2


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == pa3dfl.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == pa3dfl.__version__
