"""Files that are whole or absent. An error names the file, also where the system or a library leaves that out."""

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
    try:
        yield
    except safetensors.SafetensorError as e:  # what became of the system's error inside the library
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
    with _replacing(path) as part, part.open("wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())


def write_tensors(path: Path, tree: Tree) -> None:
    with _replacing(path) as part:
        save_file(tree, part)


def read_tensors(path: Path) -> Tree:
    # Copied: safetensors hands out unaligned views, and alignment changes last bits.
    return wire(load_file(path))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A name to write to; what is there afterwards takes the place of `path`."""
    part = path.with_name(path.name + ".part")
    with errors_name(path):
        try:
            yield part
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)  # a full disk is not made fuller
            raise
