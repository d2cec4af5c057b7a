"""The command `pa3dfl methods`."""

from pa3dfl.cli.flags import Parser
from pa3dfl.cli.printing import print_records
from pa3dfl.core.options import names


def methods(argv: list[str]) -> None:
    parser = Parser("pa3dfl methods", description="List the methods: how each uses capacities and personalises.")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    records = [
        {"method": name, "summary": method.summary, "options": method.options}
        for name, method in names.methods().items()
    ]
    print_records(records, ("method", "summary"), args.json)
