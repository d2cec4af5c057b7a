"""The command `pa3dfl report`."""

import json
from pathlib import Path

from pa3dfl.cli.flags import Parser
from pa3dfl.cli.printing import console


def report(argv: list[str]) -> None:
    parser = Parser("pa3dfl report", description="Compare finished runs in one table and in pictures.")
    parser.add_argument(
        "dirs", nargs="+", type=Path, metavar="DIR", help="run directory, or a folder of run directories"
    )
    parser.add_argument("--out", type=Path, metavar="X", help="folder for the pictures [the first DIR]")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    args = parser.parse_exactly(argv)
    from pa3dfl import runs as report

    runs = report.find_runs(args.dirs)
    records = report.comparison(runs)
    out = args.out or args.dirs[0]
    pictures = [report.learning_curve(runs, out / "learning_curve.png")]
    by_capacity = report.capacity_picture(runs, out / "capacity.png")
    pictures += [by_capacity] if by_capacity else []
    joined = report.of_newcomers(runs)
    pictures += [report.newcomers_picture(joined, out / "newcomers.png")] if joined else []
    if args.json:
        print(json.dumps(records, indent=2))
        return
    report.render(records, console())
    tables = {"table.json": records} | ({"newcomers.json": joined} if joined else {})
    for name, table in tables.items():
        (out / name).write_text(json.dumps(table, indent=2) + "\n")
    if joined:
        report.render_newcomers(joined, console())
    for path in (*pictures, *(out / name for name in tables)):
        print(path)
