"""Tables and numbers in Markdown."""

from collections.abc import Sequence

EMPTY = "–"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] + ["---:"] * (len(headers) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def percent(value: float | None, deviation: float | None = None) -> str:
    if value is None:
        return EMPTY
    return f"{100 * value:.1f}" + (f" ± {100 * deviation:.1f}" if deviation is not None else "")


def number(value: float | None, form: str = ".3g") -> str:
    return EMPTY if value is None else format(value, form)


def signed(value: float | None) -> str:
    return EMPTY if value is None else f"{value:+.1f}"


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 2 else words)
