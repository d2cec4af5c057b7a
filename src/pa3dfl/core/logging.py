"""Messages to people: one logger, `pa3dfl`, of the standard `logging` module.

As a library the package prints nothing: an application configures the logger like any other. Programs call
`show_messages` once; then each message is one line on standard error with one prefix.
"""

import logging
import sys

log = logging.getLogger("pa3dfl")
log.addHandler(logging.NullHandler())


class StandardError(logging.Handler):
    """Writes to the current `sys.stderr`, in colour on a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        # One line of printable characters: parts of a message may come from another machine.
        text = "".join(c if c.isprintable() else " " for c in record.getMessage())
        text = f"pa3dfl: {' '.join(text.split())}"
        try:
            if not sys.stderr.isatty():
                print(text, file=sys.stderr, flush=True)
                return
            from rich.console import Console  # takes a tenth of a second to import

            style = {logging.WARNING: "yellow", logging.ERROR: "red"}.get(record.levelno)
            Console(file=sys.stderr).print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        except Exception:
            self.handleError(record)


def show_messages() -> None:
    """Write messages of level INFO and above to standard error."""
    if not messages_are_shown():
        log.addHandler(StandardError())
        log.setLevel(logging.INFO)


def messages_are_shown() -> bool:
    return any(isinstance(h, StandardError) for h in log.handlers)
