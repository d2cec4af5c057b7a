"""The paper's numbers, and its numbers of rounds."""

import functools
from fractions import Fraction
from importlib import resources
from typing import Any

import yaml

PARTS = ("overall", "efficiency", "ablation", "hn-cost", "figures")
DATA = ("cifar100", "fashion-mnist", "cifar10")
SETTINGS = ("hetero", "ideal")
RATIOS = (Fraction(1, 256), Fraction(1, 64), Fraction(1, 4), Fraction(1))
"""Capacities r of the efficiency tables."""


@functools.cache
def numbers() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((resources.files(__package__) / "paper.yaml").read_text())
    return found


def accuracy(data: str, setting: str, method: str, model: str) -> tuple[float, float] | None:
    """Mean and deviation in percent; None if the paper has no such cell, or has it for another model."""
    if numbers()["models"].get(data) != model:
        return None
    cell = numbers()["overall"].get(data, {}).get(setting, {}).get(method)
    return None if cell is None else (cell[0], cell[1])


def rounds(data: str) -> int | None:
    """The paper's number of rounds; None for data that it does not use."""
    rounds: dict[str, int] = numbers()["rounds"]
    return rounds.get(data)


def full(data: str) -> int:
    """The rounds of a whole run here; data that the paper does not have counts as its shortest."""
    return rounds(data) or min(numbers()["rounds"].values())


def order() -> list[str]:
    """Methods in the order of the paper's table."""
    return list(numbers()["overall"]["cifar10"]["ideal"])


def of_rounds(data: str) -> str:
    """How many rounds the paper has, as words to follow a number."""
    own = rounds(data)
    return "rounds" if own is None else f"of {own} rounds"
