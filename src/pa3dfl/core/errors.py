"""Exceptions that end a command: an error that the user can fix, and an interrupt."""

from pathlib import Path


class UserError(ValueError):
    """The caller gave something that cannot work.

    The message is one line: what was wrong, what was expected, what to do. The command line prints it without a
    traceback and exits with code 2.
    """


class Interrupted(Exception):
    """The user or the system stopped a run. `round` is the last one saved, in `path`."""

    def __init__(self, rnd: int, path: Path) -> None:
        super().__init__(rnd, path)
        self.round, self.path = rnd, path
