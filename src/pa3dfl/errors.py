"""The one exception that is a person's to fix."""


class UserError(ValueError):
    """Something the caller gave cannot work.

    The message is one line: what was wrong, what was expected, what to do. The command-line tool
    prints it without a traceback and exits with code 2.
    """
