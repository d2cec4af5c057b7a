"""The run directory: files that other tools read."""

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from pa3dfl.core.disk import errors_name, write_atomically
from pa3dfl.core.options.config import RULES_OF_TESTING
from pa3dfl.methods import Score
from pa3dfl.methods.task import Task

COLUMNS = ("client", "r", "width", "share", "n_train", "n_val", "n_test", "val_accuracy", "test_accuracy", "alpha",
           *RULES_OF_TESTING)  # fmt: skip


def worst_decile(accuracies: list[float]) -> float:
    """Mean of the lowest tenth, at least one client."""
    worst = sorted(accuracies)[: math.ceil(len(accuracies) / 10)]
    return sum(worst) / len(worst)


def averages(scores: list[Score]) -> dict[str, float]:
    """Unweighted means over clients."""
    n = len(scores)
    return {
        "val_accuracy": sum(s.val_accuracy for s in scores) / n,
        "val_loss": sum(s.val_loss for s in scores) / n,
        "test_accuracy": sum(s.test_accuracy for s in scores) / n,
        "worst_decile_accuracy": worst_decile([s.test_accuracy for s in scores]),
        "alpha": sum(s.alpha for s in scores) / n,
    }


@dataclass(frozen=True)
class RunDirectory:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def rounds(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def history(self) -> Path:
        """What clients were like at each evaluation, see `pa3dfl.runs.history`."""
        return self.path / "history"

    @property
    def private(self) -> Path:
        """Clients' state for which there was no room in memory."""
        return self.path / "private"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def write_config(self, values: dict[str, Any]) -> None:
        write_atomically(self.config, yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode())

    def append_round(self, record: dict[str, Any]) -> None:
        with errors_name(self.rounds), self.rounds.open("a") as f:
            f.write(json.dumps(record) + "\n")

    def rewind(self, last: dict[str, Any] | None) -> None:
        """Make `rounds.jsonl` end with the record of the last committed round."""
        kept: list[str] = []
        if last is not None:
            lines = self.rounds.read_text().splitlines() if self.rounds.exists() else []
            for line in lines:
                try:
                    if json.loads(line)["round"] >= last["round"]:
                        break
                except (ValueError, KeyError):  # a line that a crash cut short
                    break
                kept.append(line)
            kept.append(json.dumps(last))
        write_atomically(self.rounds, "".join(line + "\n" for line in kept).encode())

    def write_clients(
        self, task: Task, tested: str, by_rule: Mapping[str, list[Score]], shares: Mapping[Fraction, float]
    ) -> None:
        """Every client's score, and its test accuracy by each rule; `share` is its model's size over the full one's."""
        others = {rule: {s.client: s.test_accuracy for s in scores} for rule, scores in by_rule.items()}
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        for s in by_rule[tested]:
            c, sizes = task.clients[s.client], task.data.sizes(s.client)
            accuracies = [others.get(rule, {}).get(c.id, "") for rule in RULES_OF_TESTING]
            score = [s.val_accuracy, s.test_accuracy, s.alpha]
            rows.writerow([c.id, float(c.r), c.width, shares[c.width], *sizes, *score, *accuracies])
        write_atomically(self.path / "clients.csv", text.getvalue().encode())

    def write_summary(self, values: dict[str, Any]) -> None:
        write_atomically(self.summary, (json.dumps(values, indent=2) + "\n").encode())
