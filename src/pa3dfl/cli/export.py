"""The command `pa3dfl export`."""

from pathlib import Path

from pa3dfl.cli.flags import Parser
from pa3dfl.cli.printing import print_records
from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.core.options.schema import whole_number

COLUMNS = ("client", "width", "parameters", "bytes", "round", "alpha", "test_accuracy", "path")


def export(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl export",
        description="Write clients' own models of a run as files. Each is tested again: its accuracy must be that\n"
        "of the best evaluation.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory, or the folder of a node")
    parser.add_argument(
        "--clients", default="all", metavar="X", help="ids, separated by commas; or all that were tested [all]"
    )
    parser.add_argument("--format", default="safetensors", metavar="X", help="safetensors, onnx or torch [safetensors]")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the models [models in RUN]")
    parser.add_argument("--data-dir", metavar="X", help="folder of the data, if it has moved")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    ids = None if args.clients == "all" else [whole_number("clients", word) for word in args.clients.split(",")]
    from pa3dfl.experiments.export import export as written

    records = []
    for record in written(args.run, ids, args.format, args.out, args.data_dir):
        records.append(record)
        log.info(f"client {record['client']}: {record['path']}")
    if not records:
        raise UserError("no client was named: expected ids such as 3,17, or all")
    print_records(records, COLUMNS, args.json)
