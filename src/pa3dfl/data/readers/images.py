"""A folder of images: a folder for each class, inside a folder for each client if there are clients."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from pa3dfl.core.errors import UserError
from pa3dfl.data.arrays import Arrays, Coding
from pa3dfl.data.readers.labelled import labelled, recognised
from pa3dfl.data.readers.published import reading

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"))


def found(folder: Path) -> list[Path]:
    """The images in a folder, as sorted paths relative to it."""
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)


def read(folder: Path) -> Arrays:
    paths = found(folder)
    depths = {len(p.parts) for p in paths}
    if depths not in ({2}, {3}):
        odd = next(p for p in paths if len(p.parts) != min(max(depths, default=2), 3))
        raise UserError(
            f"{folder} holds {odd}: expected all images as class/image or all as client/class/image, nothing in between"
        )
    x = _stacked(list(_pixels(folder, paths)), False)
    client = [p.parts[0] for p in paths] if depths == {3} else None
    return labelled(folder, x, [p.parts[-2] for p in paths], client, {"kind": "images", "coloured": x.shape[1] == 3})


def rows(folder: Path, coding: Coding) -> Arrays:
    """Rows to predict, in folders by class, or all in one folder and without labels."""
    paths = found(folder)
    labels = None if all(len(p.parts) == 1 for p in paths) else [(folder / p).parent.name for p in paths]
    return recognised(folder, _stacked(list(_pixels(folder, paths)), coding["coloured"]), labels, coding)


def _stacked(pixels: list[np.ndarray], coloured: bool) -> np.ndarray:
    if coloured or any(p.ndim == 3 for p in pixels):  # grey ones among coloured ones
        pixels = [p if p.ndim == 3 else np.repeat(p[..., None], 3, 2) for p in pixels]
    return np.stack([p.transpose(2, 0, 1) if p.ndim == 3 else p[None] for p in pixels])


def _pixels(folder: Path, paths: list[Path]) -> Iterator[np.ndarray]:
    size = None
    for path in paths:
        with reading(folder / path), Image.open(folder / path) as image:
            grey = image.mode in ("1", "L", "LA", "I", "I;16", "F")
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
        if size not in (None, image.size):
            raise UserError(f"{folder / path} has {image.size} pixels, others {size}: give all images one size")
        size = image.size
        yield pixels
