"""Files that only their owner may read: keys, the token, the executor's secret."""

import os
import secrets
import stat
from pathlib import Path

from pa3dfl.core.errors import UserError

BYTES = 32


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that is never readable by other users, and replace an existing one."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as f:
        f.write(content)


def new_secret(path: Path) -> bytes:
    secret = secrets.token_hex(BYTES).encode()
    write_secret(path, secret)
    return secret


def read_secret(path: Path, maker: str) -> bytes:
    """Read a secret; refuse it if others can read it. `maker` is the command that writes the file."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        content = path.read_bytes().strip()
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror}): `{maker}` makes one") from None
    if mode & 0o077:
        raise UserError(f"{path} is open to other users (mode {mode:o}): run `chmod 600 {path}`, or replace the file")
    if len(content) < BYTES:
        raise UserError(f"{path} is too short for a secret: delete it and run `{maker}`")
    return content
