"""Backup and restore of a deployment folder, also while its server runs and trains.

Files of a run are replaced, never changed in place. So a copy made of hard links is complete in an instant; if a
checkpoint was committed during that instant, the copy is made anew.
"""

import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from contextlib import closing
from pathlib import Path

from pa3dfl.core.errors import UserError
from pa3dfl.deploy.folder import DeploymentFolder
from pa3dfl.federation.checkpoint import CURRENT
from pa3dfl.runs.format import RunDirectory

# What belongs to one server process (flower, train.lock, ticket), or to the nodes (their private keys).
LEFT_OUT = ("nodes", "flower", "train.lock", "ticket")
DATABASE = "superlink.db"
UNPACKING = ".restore-"
ATTEMPTS = 50


def backup(deployment: DeploymentFolder, file: Path) -> int:
    """Write a tar archive that only its owner can read; return its size."""
    deployment.settings()
    part = file.with_name(file.name + ".part")
    try:
        with tempfile.TemporaryDirectory(dir=deployment.path, prefix=".backup-") as temporary:
            copy = Path(temporary) / "site"
            _link_site(deployment, copy)
            part.unlink(missing_ok=True)
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "wb") as out, tarfile.open(fileobj=out, mode="w") as archive:
                archive.add(copy, arcname=".")
                size = out.tell()
            part.replace(file)
    except (OSError, sqlite3.Error) as e:
        part.unlink(missing_ok=True)
        raise UserError(f"{file} could not be written ({e}): choose a writable folder with free space") from None
    return size


def restore(file: Path, deployment: DeploymentFolder) -> None:
    """Unpack a backup into a folder that is new or empty: all of it, or nothing."""
    folder = deployment.path
    if folder.exists() and not (folder.is_dir() and all(e.name.startswith(UNPACKING) for e in folder.iterdir())):
        raise UserError(f"{folder} is not empty: choose another folder")
    new = not folder.exists()
    try:
        with tarfile.open(file) as archive:
            if f"./{deployment.server.name}" not in archive.getnames():
                raise UserError(f"{file} is not a backup of a deployment: `pa3dfl deploy backup` makes one")
            folder.mkdir(parents=True, exist_ok=True)
            for killed in folder.iterdir():
                shutil.rmtree(killed)
            # Within the folder, because it may be on another disk.
            with tempfile.TemporaryDirectory(dir=folder, prefix=UNPACKING) as temporary:
                archive.extractall(temporary, filter="data")
                folder.chmod(Path(temporary).stat().st_mode)
                # Without server.yaml it is not a deployment yet.
                for entry in sorted(Path(temporary).iterdir(), key=lambda e: e.name == deployment.server.name):
                    entry.rename(folder / entry.name)
    except (OSError, EOFError, tarfile.TarError) as e:
        # `tarfile` lists what every compression has against a file that is no archive.
        unknown = str(e).startswith("file could not be opened")
        reason = "it is no archive" if unknown else getattr(e, "strerror", None) or e
        raise UserError(f"{file} cannot be restored ({reason}): expected a file of `pa3dfl deploy backup`") from None
    finally:
        if new and folder.exists() and not any(folder.iterdir()):
            folder.rmdir()


def _link_site(deployment: DeploymentFolder, copy: Path) -> None:
    checkpoint = RunDirectory(deployment.run).checkpoints / CURRENT
    for _ in range(ATTEMPTS):
        before = _version(checkpoint)
        try:
            _link(deployment.path, copy, top=True)
        except FileNotFoundError:  # replaced in between
            pass
        else:
            if _version(checkpoint) == before:
                break
        shutil.rmtree(copy, ignore_errors=True)
        time.sleep(0.1)
    else:
        raise UserError(f"{deployment.run} changes all the time: make the backup between two trainings")
    database = deployment.path / DATABASE
    if database.exists():  # changed in place: SQLite copies it between two transactions
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy / DATABASE)) as target:
            source.backup(target)


def _link(folder: Path, copy: Path, top: bool = False) -> None:
    copy.mkdir(mode=0o700)
    for entry in sorted(folder.iterdir()):
        if entry.name.endswith(".part") or (top and (entry.name in LEFT_OUT or entry.name.startswith((".", DATABASE)))):
            continue
        if entry.is_dir():
            _link(entry, copy / entry.name)
        else:
            os.link(entry, copy / entry.name)


def _version(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
