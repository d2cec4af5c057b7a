"""Tables and numbers in Markdown."""

from collections.abc import Sequence

EMPTY = "–"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str = "---:") -> str:
    """The first column to the left, the others as said: numbers to the right."""
    lines = [headers, ["---"] + [align] * (len(headers) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def percent(value: float | None, deviation: float | None = None) -> str:
    if value is None:
        return EMPTY
    return f"{100 * value:.1f}" + (f" ± {100 * deviation:.1f}" if deviation is not None else "")


def number(value: float | None, form: str = ".3g") -> str:
    return EMPTY if value is None else format(value, form)


def amount(value: float) -> str:
    """Three significant digits, without an exponent: 0.0123, 4.56, 7,890."""
    return f"{float(f'{value:.3g}'):,g}" if value < 1e6 else f"{value:.3g}"


def signed(value: float | None) -> str:
    return EMPTY if value is None else f"{round(value, 1) + 0.0:+.1f}"  # no -0.0


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 2 else words)
