"""Names of networks: ours, and where somebody's own is found."""

import sys
from pathlib import Path

import pytest

from pa3dfl.core.errors import UserError
from pa3dfl.models import factory_of
from pa3dfl.models.registry import import_object


def test_a_mistyped_name_is_corrected() -> None:
    with pytest.raises(
        UserError, match=r"^unknown model 'cnn-fasion': expected one of .*; did you mean cnn-fashion[?]$"
    ):
        factory_of("cnn-fasion")
    with pytest.raises(UserError, match=r"your own is given as package.module:factory$"):
        factory_of("x")


def test_a_factory_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("nearby_factory.py").write_text("def make(width):\n    return width\nnumber = 3\n")
    assert factory_of("nearby_factory:make")(0.5) == 0.5  # type: ignore[comparison-overlap]
    with pytest.raises(UserError, match=r"^model 'nearby_factory:number' is a int: expected a callable that takes"):
        factory_of("nearby_factory:number")


@pytest.mark.parametrize(
    ("path", "source", "reason"),
    [
        ("nowhere_at_all:make", "", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("broken_a:make", "x = 1", "AttributeError: .* has no attribute 'make'"),
        ("broken_b:make", "def make(:", "SyntaxError: "),
        ("broken_c:make", "raise OSError('a\\nb')", "OSError: a"),
        ("broken_d:make", "import sys; sys.exit(3)", "SystemExit: 3"),
        (":make", "", "ValueError: Empty module name"),
        ("broken_a:", "x = 1", "AttributeError"),
    ],
)
def test_a_failed_import_is_explained(
    path: str, source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    if source:
        Path(path.partition(":")[0] + ".py").write_text(source)
    with pytest.raises(UserError, match=f"^model '{path}' could not be imported \\({reason}") as caught:
        import_object(path, "model")
    assert "\n" not in str(caught.value)
    assert "importable from the current directory or PYTHONPATH" in str(caught.value)
