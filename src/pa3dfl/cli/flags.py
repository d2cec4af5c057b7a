"""The parser of all commands, flags made from the schema of options, and parsers of common arguments."""

import argparse
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config, read_yaml
from pa3dfl.core.options.schema import Field, coerce, flag_help, suggest


class Parser(argparse.ArgumentParser):
    """Reports a wrong call as a `UserError`, which is printed as one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _Help)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")

    def parse_exactly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse; for an unknown flag, raise an error that suggests the most similar one."""
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
    parser: argparse.ArgumentParser, method: str, options: Mapping[str, Field], without: Sequence[str] = ()
) -> None:
    """Add a flag for every option of a run, except `without`, and of its method."""
    fields = [f for f in dataclasses.fields(Config) if f.name not in ("options", *without)]
    for title, of_group in itertools.groupby(fields, lambda f: str(f.metadata["group"])):
        group = parser.add_argument_group(title)
        for f in of_group:
            _add(group, f)
    if options:
        group = parser.add_argument_group(f"options of {method}")
        for f in options.values():
            _add(group, f)


def add_fields(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add flags for some options of a run."""
    for name in names:
        _add(parser, Config.__dataclass_fields__[name])


def _add(group: Any, f: Field) -> None:
    """Add a flag for an option. A flag that is not given leaves no attribute in the parsed arguments."""
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
    """Find the value of a flag that decides which other flags the parser has."""
    for i, word in enumerate(argv):
        if word.startswith(flag + "="):
            return word.partition("=")[2]
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
    return None


def read_config(file: str | None) -> dict[str, Any]:
    return read_yaml(Path(file)) if file else {}


def parse_seeds(text: str) -> list[int]:
    return [coerce("seeds", s, int) for s in text.split(",")]


def parse_methods(text: str) -> list[str]:
    """Parse names of methods, separated by commas; `all` and `ablations` stand for several."""
    from pa3dfl import methods

    groups = {"all": methods.registry(), "ablations": methods.registry(methods.ABLATIONS)}
    names = list(dict.fromkeys(name for word in text.split(",") for name in groups.get(word, [word])))
    for name in names:
        methods.find(name)
    return names
