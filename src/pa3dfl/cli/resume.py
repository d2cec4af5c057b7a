"""The command `pa3dfl resume`."""

from pathlib import Path

from pa3dfl.cli.flags import Parser
from pa3dfl.cli.printing import show
from pa3dfl.core.logging import log


def resume(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl resume",
        description="Continue a stopped run from its last checkpoint; the results are the same as without the stop.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="run directory")
    parser.add_argument("--data-dir", metavar="X", help="folder of the data, if it has moved")
    parser.add_argument("--track", metavar="X", help="trackers for the rest of the run [those of the run]")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    args = parser.parse_exactly(argv)
    from pa3dfl.experiments import api
    from pa3dfl.runs.page import Renewed

    with Renewed(args.dir, log.info) as renewed:
        summary = api.resume(args.dir, args.data_dir, [renewed], args.track)
    show([args.dir], summary if args.json else None)
