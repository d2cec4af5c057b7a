"""Command-line flags from dataclass fields: one definition for file, flags and help."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config
from pa3dfl.core.options.schema import Field, flag_help, suggest


class Parser(argparse.ArgumentParser):
    """Answers a wrong call with one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _Help)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")

    def parse_exactly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse, and suggest the flag that was probably meant for one that does not exist."""
        args, unknown = self.parse_known_args(argv)
        if unknown:
            flags = [f for a in self._actions for f in a.option_strings]
            guess = suggest(unknown[0].partition("=")[0], flags)
            self.error(f"unknown argument {unknown[0]!r}" + (guess and f", {guess}"))
        return args


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=110)


def add_config(
    parser: argparse.ArgumentParser,
    method: str,
    options: Mapping[str, Field],
    without: Sequence[str] = (),
) -> None:
    """A flag for every field of a run and of its method. Flags that are not given leave no trace."""
    groups: dict[str, Any] = {}
    for f in dataclasses.fields(Config):
        if f.name not in ("options", *without):
            group = f.metadata["group"]
            if group not in groups:
                groups[group] = parser.add_argument_group(group)
            _add(groups[group], f)
    if options:
        own = parser.add_argument_group(f"options of {method}")
        for f in options.values():
            _add(own, f)


def _add(group: Any, f: Field) -> None:
    boolean = "bool" in str(f.type)
    extra: dict[str, Any] = {"nargs": "?", "const": "true"} if boolean else {}
    group.add_argument(
        "--" + f.name.replace("_", "-"),
        dest=f.name,
        default=argparse.SUPPRESS,
        metavar="true|false" if boolean else "X",
        help=flag_help(f).replace("%", "%%"),
        **extra,
    )


def peek(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag before the real parser exists, which depends on it."""
    for i, word in enumerate(argv):
        if word.startswith(flag + "="):
            return word.partition("=")[2]
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
    return None


def say(message: str) -> None:
    print(f"pa3dfl: {' '.join(message.split())}", file=sys.stderr)
