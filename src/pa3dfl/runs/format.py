"""The files of a run directory, written and read here only.

config.yaml      the options of the run
rounds.jsonl     one record a round
clients.csv      one row a client, from the best evaluation
newcomers.csv    one row a newcomer, number of its rounds and rule of testing
summary.json     the result; a run without it is not finished
checkpoints/     states to resume from
private/         private states of clients that do not fit into memory
"""

import csv
import io
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import errors_name, write_atomically
from pa3dfl.core.folders import Entry
from pa3dfl.core.options.config import RULES_OF_TESTING, read_yaml
from pa3dfl.methods import Score
from pa3dfl.methods.problem import Task


def _yes(text: str) -> bool:
    return text == "1"


def _number(text: str) -> float | None:
    value = float(text or "nan")
    return None if math.isnan(value) else value


# The columns of clients.csv, and how their texts are read. A width is a fraction such as 3/16; alpha may be empty.
COLUMNS: Mapping[str, Callable[[str], Any]] = {
    "client": int,
    "name": str,
    "r": float,
    "width": str,
    "share": _number,
    "n_train": int,
    "n_val": int,
    "n_test": int,
    "val_accuracy": _number,
    "test_accuracy": _number,
    "alpha": str,
    "newcomer": _yes,
    **dict.fromkeys(RULES_OF_TESTING, _number),
}
# Files of earlier versions lack these columns; not all clients have names.
OPTIONAL = ("name", "share", "newcomer", *RULES_OF_TESTING)
# The columns of newcomers.csv; k is the number of rounds that the newcomer has trained.
ARRIVAL_COLUMNS: Mapping[str, Callable[[str], Any]] = {
    "client": int,
    "method": str,
    "r": float,
    "width": str,
    "k": int,
    "rule": str,
    "val_accuracy": _number,
    "test_accuracy": _number,
    "alpha": str,
}


@dataclass(frozen=True)
class RunDirectory:
    path: Path

    config = Entry("config.yaml")
    rounds = Entry("rounds.jsonl")
    clients = Entry("clients.csv")
    newcomers = Entry("newcomers.csv")
    summary = Entry("summary.json")
    history = Entry("history")
    """Clients and hyper-network at each evaluation, see `pa3dfl.runs.history`."""
    private = Entry("private")
    checkpoints = Entry("checkpoints")

    def write_config(self, values: dict[str, Any]) -> None:
        write_atomically(self.config, yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode())

    def append_round(self, record: dict[str, Any]) -> None:
        with errors_name(self.rounds), self.rounds.open("a") as f:
            f.write(json.dumps(record) + "\n")

    def rewind(self, last: dict[str, Any] | None) -> None:
        """Make rounds.jsonl end with the record of the last committed round."""
        kept: list[str] = []
        if last is not None:
            lines = self.rounds.read_text().splitlines() if self.rounds.exists() else []
            for line in lines:
                try:
                    if json.loads(line)["round"] >= last["round"]:
                        break
                except (ValueError, KeyError):  # a crash cut this line short
                    break
                kept.append(line)
            kept.append(json.dumps(last))
        write_atomically(self.rounds, "".join(line + "\n" for line in kept).encode())

    def write_clients(
        self, task: Task, tested: str, by_rule: Mapping[str, list[Score]], shares: Mapping[Fraction, float],
        expected: Collection[int],
    ) -> None:  # fmt: skip
        """Every client's score by rule `tested`, and its test accuracy by each rule; newcomers have none.

        Nor have clients that were away when the best round was tested: `expected` are all that belong there.
        `shares` holds the size of a model of each width, as a share of the full model's.
        """
        mine = {s.client: s for s in by_rule[tested]}
        others = {rule: {s.client: s.test_accuracy for s in scores} for rule, scores in by_rule.items()}
        rows: list[list[Any]] = []
        named = any(c.name for c in task.clients)
        for c in task.clients:
            s, new = mine.get(c.id), c.id in task.newcomers
            if s is None and not new and c.id not in expected:
                continue
            accuracies = [others.get(rule, {}).get(c.id, "") for rule in RULES_OF_TESTING]
            score = [s.val_accuracy, s.test_accuracy, s.alpha] if s else [""] * 3
            facts = [float(c.r), c.width, shares.get(c.width, ""), *task.data.sizes(c.id)]
            rows.append([c.id, *([c.name] if named else []), *facts, *score, int(new), *accuracies])
        write_csv(self.clients, [k for k in COLUMNS if named or k != "name"], rows)

    def write_newcomers(self, task: Task, method: str, scores: Sequence[tuple[int, Score]]) -> None:
        """`scores` holds the scores of newcomers, each with the number of rounds that the newcomer had trained."""
        rows = []
        for k, s in sorted(scores, key=lambda one: (one[1].client, one[0])):
            c = task.clients[s.client]
            facts = [c.id, method, float(c.r), c.width, k, s.rule]
            rows.append([*facts, s.val_accuracy, s.test_accuracy, s.alpha])
        write_csv(self.newcomers, ARRIVAL_COLUMNS, rows)

    def write_summary(self, values: dict[str, Any]) -> None:
        write_atomically(self.summary, (json.dumps(values, indent=2) + "\n").encode())

    def read_config(self) -> dict[str, Any]:
        return read_yaml(self.config)

    def read_rounds(self) -> list[dict[str, Any]]:
        *lines, tail = self.rounds.read_text("utf-8", "replace").split("\n")
        rounds = [_json_object(line, f"{self.rounds}, line {n},") for n, line in enumerate(lines, 1)]
        with suppress(UserError):  # a run that was killed while it wrote leaves a part of a line, without its end
            rounds.append(_json_object(tail, self.rounds))
        for n, record in enumerate(rounds, 1):
            if not isinstance(record.get("round"), int):
                raise UserError(f"{self.rounds}, line {n}, has no round number: this is not the log of a run")
        return rounds

    def read_clients(self) -> list[dict[str, Any]]:
        return _read_csv(self.clients, COLUMNS)

    def read_newcomers(self) -> list[dict[str, Any]]:
        return _read_csv(self.newcomers, ARRIVAL_COLUMNS)

    def read_summary(self) -> dict[str, Any]:
        return _json_object(self.summary.read_text("utf-8", "replace"), self.summary)


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def _read_csv(path: Path, columns: Mapping[str, Callable[[str], Any]]) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        table = csv.DictReader(lines)
        there = table.fieldnames or []
        missing = [column for column in columns if column not in there and column not in OPTIONAL]
        if missing:
            raise UserError(f"{path} lacks the column(s) {', '.join(missing)}: its header is not a run's")
        readers = {column: read for column, read in columns.items() if column in there}
        rows = []
        for row in table:
            try:
                rows.append({column: read(row[column]) for column, read in readers.items()})
            except (TypeError, ValueError) as e:  # TypeError: the values that a short row lacks are None
                raise UserError(f"{path}, line {table.line_num}, is not a client's row ({e})") from None
    return rows


def _json_object(text: str, where: Path | str) -> dict[str, Any]:
    try:
        # NaN (nothing was measured, or a loss diverged) is read as None, which means and maxima leave out.
        value = json.loads(text, parse_constant=lambda _: None)
    except ValueError as e:
        raise UserError(f"{where} is not valid JSON ({e}): restore it or leave this run out") from None
    if not isinstance(value, dict):
        raise UserError(f"{where} should hold a JSON object, not {type(value).__name__}")
    return value
