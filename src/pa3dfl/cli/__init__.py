"""The command-line tool: it parses arguments, calls the package and prints results. One file for each command.

May import every other room, but heavy modules only after the arguments are parsed.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from pa3dfl import __version__
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.logging import log, show_messages
from pa3dfl.core.words import counted

USAGE = """pa3dfl: personalised federated learning for clients that differ in data and capacity

  pa3dfl run [CONFIG.yaml] [--method … --data … --setting … --rounds … …]   train one method
  pa3dfl resume DIR                    continue a stopped run
  pa3dfl report DIR…                   compare finished runs in a table and in pictures
  pa3dfl page RUN…                     show runs, client by client, in one HTML file
  pa3dfl compare                       train several methods and seeds with equal options, print one table
  pa3dfl tune METHOD                   train with a grid of options, choose by validation accuracy
  pa3dfl reproduce [PART]              repeat the paper's experiments and write docs/reproduction.md
  pa3dfl methods                       list the methods
  pa3dfl cost                          multiply-adds, memory, parameters and bytes by method and width
  pa3dfl data [NAME]                   list the data sets; with NAME, the distribution of labels to clients
  pa3dfl deploy init|server|node|train|status|…   a federation on several machines, see docs/deploy.md
  pa3dfl export RUN                    write clients' own models as safetensors, ONNX or PyTorch programs
  pa3dfl predict MODEL FILE            predict labels with an exported model, or with the personal model of a node

Every command takes --help; those that print a table take --json.
The shortest complete run: pa3dfl run --rounds 10
"""

Command = Callable[[list[str]], None]


def imported(name: str) -> Command:
    """The function NAME of the module NAME, imported when it is called."""

    def command(argv: list[str]) -> None:
        getattr(import_module(f"pa3dfl.cli.{name}"), name)(argv)

    return command


NAMES = (
    "run", "resume", "report", "page", "compare", "tune", "reproduce", "methods", "cost", "data", "deploy", "export",
    "predict",
)  # fmt: skip
COMMANDS: Mapping[str, Command] = {name: imported(name) for name in NAMES}


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"pa3dfl {__version__}")
        return 0
    show_messages()
    try:
        if argv[0] not in COMMANDS:
            raise UserError(f"unknown command {argv[0]!r}: expected one of {', '.join(COMMANDS)}")
        COMMANDS[argv[0]](argv[1:])
    except UserError as e:
        log.error(str(e))
        return 2
    except Interrupted as e:
        log.error(f"stopped after {counted(e.round, 'round')}: continue with `pa3dfl resume {e.path}`")
        return 130
    except KeyboardInterrupt:
        log.error("stopped")
        return 130
    except OSError as e:
        log.error(f"{e.filename or 'a file'}: {e.strerror or e}")
        return 1
    except RuntimeError as e:
        if type(e).__name__ != "OutOfMemoryError":  # by name: PyTorch may not be imported
            raise
        log.error("out of GPU memory: stop other programs, use a smaller --batch, or use --device cpu")
        return 1
    return 0
