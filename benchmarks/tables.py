"""What every benchmark ends with: one table to read, one JSON file to compute with."""

import json
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table with one line for each row; all rows have the keys of the first."""
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(rows[0]):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(_text(v) for v in row.values()))
    Console(width=160).print(table)


def save(path: Path, name: str, settings: dict[str, Any], results: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {"processor": processor(), "python": platform.python_version(), "system": platform.platform()}
    content = {"benchmark": name, "machine": machine, "settings": settings, "results": results}
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"results in {path}")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return str(value)
