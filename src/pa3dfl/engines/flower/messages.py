"""The format of messages: JSON for facts, safetensors for tensors, never pickle.

Sizes are checked before tensors are built, because the content of a message is not trusted.
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

# The limit on a node, which has no specification of the server's message.
LIMIT = 1 << 30


class Refused(Exception):
    """A message that cannot be used, and the reason."""


def pack(tree: Mapping[str, torch.Tensor]) -> bytes:
    return save({k: v.cpu() for k, v in wire(tree).items()}) if tree else b""


def unpack(blob: bytes, limit: int = LIMIT) -> Tree:
    if len(blob) > limit:
        raise Refused(f"{len(blob):,} bytes, expected at most {limit:,}")
    if not blob:
        return {}
    try:
        # Copy: safetensors returns unaligned views, and alignment changes the last bits of results.
        return wire(load(blob))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as e:
        raise Refused(f"not a safetensors file: {' '.join(str(e).split())}") from None


def size_limit(spec: Spec) -> int:
    """The largest valid size of a packed tree in bytes: its tensors, and JSON for each name."""
    contents = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in spec.values())
    return contents + sum(256 + 6 * len(name) for name in spec) + 1024


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
