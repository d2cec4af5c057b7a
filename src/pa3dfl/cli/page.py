"""The command `pa3dfl page`."""

import json
from pathlib import Path

from pa3dfl.cli.flags import Parser


def page(argv: list[str]) -> None:
    parser = Parser("pa3dfl page", description="Show runs and their clients in one HTML file that opens offline.")
    parser.add_argument("dirs", nargs="+", type=Path, metavar="RUN", help="run directory, or a folder of them")
    parser.add_argument("-o", "--out", type=Path, metavar="X", help="the file [report.html in the first folder]")
    parser.add_argument("--json", action="store_true", help="print the file's name as JSON")
    args = parser.parse_exactly(argv)
    from pa3dfl.runs import page

    written = page.write(args.dirs, args.out or args.dirs[0] / page.NAME)
    print(json.dumps({"page": str(written)}) if args.json else written)
