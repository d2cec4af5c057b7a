"""Print records as a table or as JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def show(paths: list[Path], summary: dict[str, Any] | None) -> None:
    from pa3dfl.runs import comparison, find_runs, render

    if summary is not None:
        print(json.dumps(summary, indent=2))
    else:
        render(comparison(find_runs(paths)), console())


def print_records(records: Sequence[Mapping[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(records, indent=2))
        return
    if len(records) == 1:  # a single record is easier to read as a column
        for k in columns:
            print(f"{k.replace('_', ' '):22} {_text(records[0][k])}")
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for c in columns:
        numeric = all(isinstance(r[c], (int, float, type(None))) for r in records)
        table.add_column(c.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for r in records:
        table.add_row(*(_text(r[c]) for c in columns))
    console().print(table)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def console() -> "Console":
    from rich.console import Console

    screen = Console()
    # A pipe has no width: rich would assume 80 columns and wrap lines.
    return screen if screen.is_terminal else Console(width=140)
