"""What goes over the wire: JSON for facts, safetensors for tensors, never pickle.

Sizes are checked before tensors are built, because a length is all that is known of a stranger's bytes.
"""

import json
from collections.abc import Mapping
from typing import Any

import safetensors
import torch
from safetensors.torch import load, save

from pa3dfl.core.tree import Tree, wire
from pa3dfl.engines.guard import Spec

Facts = dict[str, Any]

# What a node takes from its server: it has no specification to compare with.
LIMIT = 1 << 30


class Refused(Exception):
    """What arrived cannot be used; the message says why."""


def pack(tree: Mapping[str, torch.Tensor]) -> bytes:
    return save({k: v.cpu() for k, v in wire(tree).items()}) if tree else b""


def unpack(blob: bytes, limit: int = LIMIT) -> Tree:
    if len(blob) > limit:
        raise Refused(f"{len(blob):,} bytes, expected at most {limit:,}")
    if not blob:
        return {}
    try:
        # Copied: safetensors hands out unaligned views, and alignment changes last bits.
        return wire(load(blob))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as e:
        raise Refused(f"not a safetensors file: {' '.join(str(e).split())}") from None


def room(spec: Spec) -> int:
    """The most bytes that an honest tree can take: its contents, and a line of JSON for each name."""
    contents = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in spec.values())
    return contents + sum(256 + 6 * len(name) for name in spec) + 1024


def write_facts(facts: Facts) -> str:
    return json.dumps(facts)


def read_facts(text: Any) -> Facts:
    try:
        facts = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise Refused("not JSON") from None
    if not isinstance(facts, dict):
        raise Refused("not a JSON object")
    return facts


def whole(facts: Facts, name: str) -> int:
    value = facts.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{name} is {str(value)[:40]!r}, expected a whole number")
    return value


def number(facts: Facts, name: str) -> float:
    value = facts.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise Refused(f"{name} is {str(value)[:40]!r}, expected a number")
    return float(value)
