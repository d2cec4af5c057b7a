"""The command-line tool: arguments in, tables out. Nothing is computed here.

A command is a function of its arguments: those that train are in `training`, those that only look in `looking`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from pa3dfl.cli.flags import say
from pa3dfl.core.errors import Interrupted, UserError
from pa3dfl.core.options.names import version

USAGE = """pa3dfl: personal models for devices that differ in both data and capacity

  pa3dfl run [CONFIG.yaml] [--method … --data … --setting … --rounds … …]   train
  pa3dfl resume DIR                    go on with a run that was stopped
  pa3dfl report DIR…                   table and pictures of one or several runs
  pa3dfl page RUN…                     one HTML file that shows runs, client by client
  pa3dfl compare                       several methods and seeds on equal terms, in one table
  pa3dfl tune METHOD                   try a grid of options, choose by validation accuracy
  pa3dfl reproduce [PART]              the paper's experiments: plan, run, render docs/reproduction.md
  pa3dfl methods                       what can be trained
  pa3dfl cost                          multiply-adds, memory, parameters and bytes by method and width
  pa3dfl data [NAME]                   what data is here; with a name, who gets which labels
  pa3dfl deploy init|server|node|train a federation on real machines, see docs/deploy.md
  pa3dfl predict MODEL FILE            what a node's own model says of a file's rows

Every command takes --help; those that print a table take --json.
The shortest complete run: pa3dfl run --rounds 10
"""

Command = Callable[[list[str]], None]


def imported(module: str, name: str) -> Command:
    """A command that is imported when it is called. It parses its arguments before it imports what takes long."""

    def command(argv: list[str]) -> None:
        getattr(import_module(module), name)(argv)

    return command


COMMANDS: Mapping[str, Command] = {
    "run": imported("pa3dfl.cli.training", "run"),
    "resume": imported("pa3dfl.cli.training", "resume"),
    "report": imported("pa3dfl.cli.looking", "report_runs"),
    "page": imported("pa3dfl.cli.looking", "write_page"),
    "compare": imported("pa3dfl.cli.training", "compare_methods"),
    "tune": imported("pa3dfl.cli.training", "tune_methods"),
    "reproduce": imported("pa3dfl.cli.reproducing", "reproduce"),
    "methods": imported("pa3dfl.cli.looking", "list_methods"),
    "cost": imported("pa3dfl.cli.looking", "list_costs"),
    "data": imported("pa3dfl.cli.looking", "describe_data"),
    "deploy": imported("pa3dfl.cli.deploy", "deploy"),
    "predict": imported("pa3dfl.cli.deploy", "predict"),
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"pa3dfl {version()}")
        return 0
    try:
        if argv[0] not in COMMANDS:
            raise UserError(f"unknown command {argv[0]!r}: expected one of {', '.join(COMMANDS)}")
        COMMANDS[argv[0]](argv[1:])
    except UserError as e:
        say(str(e))
        return 2
    except Interrupted as e:
        say(f"stopped; {e.round} rounds are kept, `pa3dfl resume {e.path}` goes on from there")
        return 130
    except KeyboardInterrupt:
        say("stopped")
        return 130
    except OSError as e:
        say(f"{e.filename or 'a file'}: {e.strerror or e}")
        return 1
    except RuntimeError as e:
        if type(e).__name__ != "OutOfMemoryError":  # torch's: whoever raises it has imported it
            raise
        say("the GPU's memory is full: let other programs end, use a smaller --batch, or use --device cpu")
        return 1
    return 0
