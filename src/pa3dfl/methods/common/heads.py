"""The two parts of a model's parameters: the head (the last linear layer) and the encoder below it."""

from collections.abc import Mapping
from typing import TypeVar

from pa3dfl.models import Model

T = TypeVar("T")


def split_head(model: Model, tree: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """(encoder, head) of a tree with the model's parameter names."""
    prefix = model.head + "."
    head = {k: v for k, v in tree.items() if k.startswith(prefix)}
    return {k: v for k, v in tree.items() if k not in head}, head
