"""Downloads the published files of a data set into the user's cache."""

import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from pa3dfl.core.errors import UserError

_TIMEOUT = 20.0  # seconds without an answer
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Published:
    """One published file."""

    base: str
    name: str
    md5: str


def cache() -> Path:
    """Where downloads are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "pa3dfl"


def fetch_all(files: Sequence[Published], folder: Path) -> None:
    """Fetch the files that the folder does not hold yet; PA3DFL_MIRROR replaces their base address."""
    mirror = os.environ.get("PA3DFL_MIRROR")
    for file in files:
        if not os.path.isfile(folder / file.name):
            fetch(f"{(mirror or file.base).rstrip('/')}/{file.name}", file.md5, folder / file.name)


def fetch(url: str, md5: str, target: Path) -> None:
    """Download to a temporary file next to the target; move it there once its MD5 is right."""
    part = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A unique name: other processes may download the same file.
        handle, part = tempfile.mkstemp(".part", f"{target.name}.", target.parent)
        with open(handle, "wb") as out:
            found = _stream(url, out)
        if found != md5:
            raise ValueError(f"its MD5 is {found}, published is {md5}")
        os.replace(part, target)
        part = None
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()  # the error holds the connection
        raise UserError(f"{url}: {' '.join(str(error).split()) or type(error).__name__}") from error
    finally:
        if part is not None:
            os.unlink(part)


def _stream(url: str, out: BinaryIO) -> str:
    """Copy a URL's body to `out` under a progress bar; returns its MD5."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    console = Console(stderr=True)
    with (
        urllib.request.urlopen(url, timeout=_TIMEOUT) as response,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        expected = int(response.headers.get("Content-Length") or 0) or None
        task = progress.add_task(url.rsplit("/", 1)[-1], total=expected)
        while chunk := response.read(_CHUNK):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            progress.update(task, completed=size)
    if expected is not None and size != expected:  # http.client reports this only for an unsized read
        raise ValueError(f"the connection ended after {size:,} of {expected:,} bytes")
    return digest.hexdigest()
