"""A node's description of itself: once complete, then with every answer the facts that may change."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeGuard

import numpy as np

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.capacity import parse_ratio
from pa3dfl.deploy.tasks import Sizes
from pa3dfl.engines.flower.messages import Facts, Refused, whole


@dataclass
class Registration:
    """A node's description of itself, sent once before training."""

    name: str
    node: int
    r: str
    sizes: Sizes
    shape: tuple[int, ...]
    classes: int
    bytes: bool
    histogram: list[list[int]] | None
    capacity: str = ""
    """As the node gave it: a share or a budget."""
    newcomer: bool = False
    """Whether it came after the last round and took no part in training."""

    @property
    def share(self) -> Fraction:
        return parse_ratio(self.r, "capacity")


def restored(saved: dict[str, Any]) -> Registration:
    return Registration(**(saved | {"sizes": tuple(saved["sizes"]), "shape": tuple(saved["shape"])}))


def registration_of(node: int, facts: dict[str, Any]) -> Registration:
    """Check a node's description of itself."""
    if "error" in facts:
        raise Refused(str(facts["error"])[:500])
    name, r, shape = (facts.get(k) for k in ("name", "r", "shape"))
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
        raise Refused("a node without a name of 1 to 100 printable characters")
    if name[0] in "=+-@":  # names are in tables, and spreadsheets would take this one for a formula
        raise Refused(f"the name {name!r} begins with {name[0]}: begin with another character")
    sizes, capacity = sizes_of(facts), capacity_of(facts)
    if not whole_numbers(shape) or not 0 < len(shape) <= 4:
        raise Refused(f"{name!r} sent the shape {str(shape)[:40]}: expected 1 to 4 whole numbers")
    counts = facts.get("histogram")
    if counts is not None:
        try:
            table = np.array(counts, dtype=np.int64)
        except (ValueError, TypeError, OverflowError):
            raise Refused(f"{name!r} sent a histogram that does not fit its shape") from None
        if table.shape != (shape[0], 256) or table.min() < 0 or table.sum(1).min() < 1:
            raise Refused(f"{name!r} sent a histogram that does not fit its shape")
    classes = whole(facts, "classes")
    if not 0 < classes <= 1_000_000:
        raise Refused(f"{name!r} sent {classes} classes: expected 1 to 1,000,000")
    try:
        share = parse_ratio(str(r)[:40], "capacity")
    except UserError as e:
        raise Refused(f"{name!r}: {e}") from None
    images = facts.get("bytes") is True
    return Registration(name, node, str(share), sizes, tuple(shape), classes, images, counts, capacity)


def sizes_of(facts: Facts) -> Sizes:
    sizes = facts.get("sizes")
    if not whole_numbers(sizes) or len(sizes) != 3:
        raise Refused(f"sizes are {str(sizes)[:40]}, expected three whole numbers from 1")
    return (sizes[0], sizes[1], sizes[2])


def capacity_of(facts: Facts) -> str:
    capacity = facts.get("capacity")
    if not isinstance(capacity, str) or not capacity.isprintable():
        raise Refused(f"capacity is {str(capacity)[:40]!r}, expected a printable text")
    return capacity[:40]


def whole_numbers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and 0 < v < 2**31 for v in value)
