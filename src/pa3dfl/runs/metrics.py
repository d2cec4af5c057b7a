"""Summary numbers over many clients."""

import math
from collections.abc import Iterable, Sequence

from pa3dfl.methods import Score


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def worst_decile(accuracies: Sequence[float]) -> float:
    """Mean of the lowest tenth, of one client at least."""
    worst = sorted(accuracies)[: math.ceil(len(accuracies) / 10)]
    return sum(worst) / len(worst)


def averages(scores: Sequence[Score]) -> dict[str, float]:
    """Unweighted means over clients."""
    n = len(scores)
    return {
        "val_accuracy": sum(s.val_accuracy for s in scores) / n,
        "val_loss": sum(s.val_loss for s in scores) / n,
        "test_accuracy": sum(s.test_accuracy for s in scores) / n,
        "worst_decile_accuracy": worst_decile([s.test_accuracy for s in scores]),
        "alpha": sum(s.alpha for s in scores) / n,
    }
