"""The schema of options: a dataclass field carries the default, the help text and the allowed values of one option.

`Config` and every method declare their options with `option`. Flags, config files and Python calls share the checks.
"""

import contextlib
import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable
from typing import Any

from pa3dfl.core.errors import UserError

Field = dataclasses.Field[Any]


def option(
    default: Any,
    help: str,
    *,
    group: str = "",
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that is an option. `group` is the heading under which `--help` lists it."""
    bounds = {"at_least": at_least, "above": above, "at_most": at_most}
    return dataclasses.field(default=default, metadata={"help": help, "group": group, "choices": choices} | bounds)


def check(options: Any) -> None:
    """Refuse the first option of a dataclass instance whose value is not allowed."""
    for f in dataclasses.fields(options):
        value, m = getattr(options, f.name), f.metadata
        if value is None or "help" not in m:
            continue
        if m["choices"] and value not in m["choices"]:
            raise UserError(f"{f.name} is {value!r}: expected one of {', '.join(m['choices'])}")
        check_range(f.name, value, m["at_least"], m["above"], m["at_most"])


def check_range(
    name: str, value: float, at_least: float | None = None, above: float | None = None, at_most: float | None = None
) -> None:
    # Each condition is written so that NaN fails it.
    if at_least is not None and not value >= at_least:
        raise UserError(f"{name} is {value}: expected at least {at_least:g}")
    if above is not None and not value > above:
        raise UserError(f"{name} is {value}: expected a number above {above:g}")
    if at_most is not None and not value <= at_most:
        raise UserError(f"{name} is {value}: expected at most {at_most:g}")
    if (at_least, above) != (None, None) and math.isinf(value):
        raise UserError(f"{name} is {value}: expected a finite number")


def whole_number(name: str, value: Any, at_least: float | None = None, at_most: float | None = None) -> int:
    number: int = coerce(name, value, int)
    check_range(name, number, at_least, at_most=at_most)
    return number


def coerce(name: str, value: Any, kind: Any) -> Any:
    """Convert a value from YAML or from a flag's text to the type of its field."""
    allowed = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and type(None) in allowed:
        return None
    for t in allowed:
        if t is bool and (isinstance(value, bool) or str(value).lower() in ("true", "false", "yes", "no")):
            return value if isinstance(value, bool) else str(value).lower() in ("true", "yes")
        if t is str and not isinstance(value, (dict, list)):
            return str(value)
        if t in (int, float) and not isinstance(value, bool):
            if t is int:
                with contextlib.suppress(ValueError):  # a float would lose the digits of a long seed
                    return int(str(value))
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                continue
            if t is float and not math.isnan(number):
                return number
            if t is int and number.is_integer():
                return int(number)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    expected = " or ".join(names[t] for t in allowed if t in names)
    raise UserError(f"{name} is {value!r}: expected {expected}")


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A question that names the most similar known word, or `otherwise` if none is similar."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {close[0]}?" if close else otherwise


def flag_help(f: Field) -> str:
    """The help text of an option's flag: its meaning, its choices and its default."""
    text: str = f.metadata["help"]
    choices: tuple[str, ...] = f.metadata["choices"]
    default = "by data" if f.default is None and "default" not in text else f.default
    return text + (f"; one of {', '.join(choices)}" if choices else "") + ("" if default is None else f" [{default}]")
