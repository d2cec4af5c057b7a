"""The command `pa3dfl run`."""

from pathlib import Path

from pa3dfl.cli.flags import Parser, add_config, peek, read_config
from pa3dfl.cli.printing import show
from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.core.options.config import Config


def run(argv: list[str]) -> None:
    from pa3dfl import methods
    from pa3dfl.experiments import api
    from pa3dfl.methods import assembly
    from pa3dfl.runs.page import Renewed

    file = next((w for w in argv if w.endswith((".yaml", ".yml")) and not w.startswith("-")), None)
    given = read_config(file)
    name = peek(argv, "--method") or str(given.get("method", Config.method))
    cls = methods.find(name)
    parser = Parser(
        "pa3dfl run",
        usage="pa3dfl run [CONFIG.yaml] [options]",
        description="Train one method. Flags override CONFIG.yaml, which overrides the presets of the data set.",
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="options as a YAML mapping")
    add_config(parser, cls.name, assembly.option_fields(cls))
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is in the run directory")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    args = vars(parser.parse_exactly(argv))
    as_json, overwrite, named = args.pop("json"), args.pop("overwrite"), args.pop("config")
    if named != file:
        raise UserError(f"config {named!r} is not a .yaml file: options start with dashes, such as --rounds 10")
    given.pop("data_fingerprint", None)
    config = assembly.configure(given | args)
    with Renewed(Path(config.out or ""), log.info) as renewed:
        summary = api.run(config, overwrite, [renewed])
    show([Path(summary["path"])], summary if as_json else None)
