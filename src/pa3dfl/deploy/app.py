"""The Flower app of pa3dfl: a name and a hash, without code. Nodes and server run the installed package instead."""

import hashlib
import io
import tomllib
import zipfile
from importlib import resources
from typing import Any, Final

# Raise its version with every incompatible change of the protocol between server and nodes.
_PYPROJECT: Final = (resources.files("pa3dfl.deploy") / "templates" / "app.toml").read_bytes()
DEFAULTS: Final[dict[str, Any]] = tomllib.loads(_PYPROJECT.decode())["tool"]["flwr"]["app"]["config"]


def _bundle() -> bytes:
    """The app as a zip archive with the same bytes on every machine, because nodes compare its hash."""
    entry = zipfile.ZipInfo("pyproject.toml", (2026, 1, 1, 0, 0, 0))
    entry.create_system, entry.external_attr = 3, 0o644 << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(entry, _PYPROJECT)
    return out.getvalue()


BUNDLE: Final = _bundle()
HASH: Final = hashlib.sha256(BUNDLE).hexdigest()


def foreign(fab_hash: str) -> str | None:
    """The reason to refuse a task of another app, or None for a task of pa3dfl."""
    if fab_hash == HASH:
        return None
    return f"a task of another app was refused: its hash is {fab_hash[:12]!r}, pa3dfl's own {HASH[:12]!r}"
