"""Files that are written completely or not at all, with errors that always name the file."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors
from safetensors.torch import load_file, save_file

from pa3dfl.core.tree import Tree, wire


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Turn errors of the block into an OSError that names `path`."""
    try:
        yield
    except safetensors.SafetensorError as e:  # it wraps an OSError, whose number is in its text
        number = re.search(r"(?:os error |Os { code: )(\d+)", str(e))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from None
    except OSError as e:
        if e.filename is None and e.errno is not None:
            raise OSError(e.errno, e.strerror, str(path)) from None
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file; it survives a power failure right after the call."""
    with _replacing(path) as part, part.open("wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())


def write_tensors(path: Path, tree: Tree, durable: bool = False) -> None:
    """Write a tree as safetensors. With `durable` the file survives a power failure right after the call."""
    with _replacing(path) as part:
        save_file(tree, part)
        if durable:
            with part.open("rb") as f:
                os.fsync(f.fileno())


def read_tensors(path: Path) -> Tree:
    # Copied: safetensors returns unaligned views, and alignment changes the last bits of results.
    return wire(load_file(path))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary path for the block to write; the file there then replaces `path`."""
    part = path.with_name(path.name + ".part")
    with errors_name(path):
        try:
            yield part
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)  # a full disk needs the space
            raise
