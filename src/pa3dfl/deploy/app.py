"""The Flower app that stands for pa3dfl: a name and a hash, no code. What runs is the installed package."""

import hashlib
import io
import zipfile
from typing import Any, Final

# Raised whenever a server and a node of different releases would not understand each other.
VERSION = "2.0.0"
DEFAULTS: Final[dict[str, Any]] = {"ticket": "", "resume": False, "wait-for": 0, "patience": 600.0}

_PYPROJECT = f"""[project]
name = "pa3dfl-app"
version = "{VERSION}"
description = "A name for what the installed pa3dfl does"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "pa3dfl"

[tool.flwr.app.components]
serverapp = "pa3dfl:nothing"
clientapp = "pa3dfl:nothing"

[tool.flwr.app.config]
ticket = ""
resume = false
wait-for = 0
patience = 600.0
"""


def _bundle() -> bytes:
    """The same bytes on every machine: all that a node compares is their hash."""
    entry = zipfile.ZipInfo("pyproject.toml", (2026, 1, 1, 0, 0, 0))
    entry.create_system, entry.external_attr = 3, 0o644 << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(entry, _PYPROJECT)
    return out.getvalue()


BUNDLE: Final = _bundle()
HASH: Final = hashlib.sha256(BUNDLE).hexdigest()


def foreign(fab_hash: str) -> str | None:
    """Why a task is not ours; None if it is."""
    if fab_hash == HASH:
        return None
    return f"a task of another app was refused: its hash is {fab_hash[:12]!r}, pa3dfl's own {HASH[:12]!r}"
