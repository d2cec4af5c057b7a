"""What stops a command: an error that a person can fix, or a person."""

from pathlib import Path


class UserError(ValueError):
    """Something the caller gave cannot work.

    The message is one line: what was wrong, what was expected, what to do. The command-line tool
    prints it without a traceback and exits with code 2.
    """


class Interrupted(Exception):
    """The person or the system asked to stop; `round` is the last one kept."""

    def __init__(self, rnd: int, path: Path) -> None:
        super().__init__(rnd, path)
        self.round, self.path = rnd, path
