"""Help comes at once: what takes seconds to import is not imported before it is needed."""

import json
import os
import subprocess
import sys

import pytest

import pa3dfl
from pa3dfl import methods
from pa3dfl.core.options import names
from pa3dfl.data import sources
from pa3dfl.methods.assembly import option_fields
from pa3dfl.models import registry

HEAVY = ("torch", "numpy", "matplotlib", "flwr")
CALL = """
import json, sys
from pa3dfl.cli import main
try:
    code = main(json.loads(sys.argv[1]))
except SystemExit as e:
    code = e.code
print(json.dumps([code, sorted(set(sys.argv[2:]) & sys.modules.keys())]), file=sys.stderr)
"""
COMMANDS = ("report", "page", "resume", "compare", "tune", "methods", "cost", "data", "export", "predict", "deploy",
            "deploy server", "deploy node", "deploy train", "deploy register", "deploy status",
            "deploy revoke", "deploy rotate-key", "deploy backup", "deploy restore")  # fmt: skip


def fresh(program: str, *argv: str) -> tuple[str, str, float]:
    """Its output on each stream, and its seconds of processor time: wall time depends on what else runs."""
    before = os.times()
    done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True, timeout=60)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout, done.stderr, seconds


@pytest.mark.parametrize("words", ["", "--help", "--version", "methods", *(f"{c} --help" for c in COMMANDS)])
def test_help_imports_nothing_heavy(words: str) -> None:
    if words.startswith("deploy "):
        pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")
    out, err, seconds = fresh(CALL, json.dumps(words.split()), *HEAVY)
    assert json.loads(err) == [0 if words else 2, []]
    assert out.strip()
    assert seconds < 0.5  # 0.03 to 0.12 when nothing else runs


def test_the_package_imports_nothing_before_it_is_used() -> None:
    program = "import sys, pa3dfl; print(sorted(set(sys.argv[1:]) & sys.modules.keys()), pa3dfl.UserError.__name__)"
    assert fresh(program, *HEAVY)[0].strip() == "[] UserError"


def test_public_names_can_be_imported() -> None:
    assert {getattr(pa3dfl, name).__name__ for name in pa3dfl.__all__} == set(pa3dfl.__all__)
    assert set(pa3dfl.__all__) <= set(dir(pa3dfl))
    with pytest.raises(AttributeError, match="module 'pa3dfl' has no attribute 'nothing'"):
        pa3dfl.__getattr__("nothing")


def test_names_found_without_imports_equal_the_registries() -> None:
    found = {
        name: names.Described(cls.summary, {k: f.default for k, f in option_fields(cls).items()})
        for name, cls in methods.registry().items()
    }
    assert names.methods() == found
    assert list(names.methods()) == list(found)
    assert tuple(sources.CATALOGUE) == names.DATA
    assert tuple(registry._FACTORIES) == names.MODELS
