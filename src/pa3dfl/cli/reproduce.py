"""The command `pa3dfl reproduce`."""

from fractions import Fraction
from pathlib import Path
from typing import Any

from pa3dfl.cli.flags import Parser, add_config
from pa3dfl.cli.printing import print_records
from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.core.options.schema import check_range, coerce, whole_number
from pa3dfl.experiments.reproduce.paper import DATA, PARTS

DESCRIPTION = """\
Repeat the paper's experiments and write docs/reproduction.md from all results so far.

The most informative runs come first: hetero before ideal, Pa3dFL and its strongest competitors before the others,
further seeds last. Finished runs are skipped, stopped runs are continued. Several processes may share the work: each
run has a lock. Other options are passed on to every run."""


def reproduce(argv: list[str]) -> None:
    args = _arguments(argv)
    from pa3dfl.experiments.reproduce import command, insert

    parts, show, budget = args.pop("parts"), args.pop("json"), _minutes(args.pop("budget"))
    places = command.Places(Path(args.pop("out")), Path(args.pop("runs")), Path(args.pop("docs")))
    dry, render_only, into = args.pop("dry_run"), args.pop("render_only"), args.pop("into")
    chosen = command.parts_of(parts or ["all"])
    if into is not None:
        print(insert.fill(places.results, Path(into)))
        return
    if render_only:
        print(command.render(places))
        return
    part = _length(args.pop("rounds"), args.pop("fraction"))
    data, settings = _words(args.pop("data")), _settings(args.pop("setting"))
    methods, seeds = args.pop("methods"), args.pop("seeds")
    jobs = command.jobs_of(
        chosen, data, settings, methods, None if seeds is None else [coerce("seeds", s, int) for s in _words(seeds)],
        part, args, places,
    )  # fmt: skip
    if dry:
        print_records(command.shown(jobs, places), command.COLUMNS, show)
        return
    page = command.carry_out(chosen, jobs, args, places, budget, log.info)
    if show:
        print_records(command.shown(jobs, places), command.COLUMNS, as_json=True)
    else:
        print(page)


def _arguments(argv: list[str]) -> dict[str, Any]:
    parser = Parser("pa3dfl reproduce", usage="pa3dfl reproduce [PART…] [options]", description=DESCRIPTION)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"part of the paper: {', '.join(PARTS)} or all [all]")
    parser.add_argument(
        "--data", default=",".join(DATA), metavar="X", help="data sets, separated by commas [%(default)s]"
    )
    parser.add_argument(
        "--setting", default="hetero,ideal", metavar="X", help="settings, separated by commas [%(default)s]"
    )
    parser.add_argument(
        "--methods", metavar="X", help="methods, separated by commas; all, ablations, or pa3dfl@lam=0.1 [by part]"
    )
    parser.add_argument(
        "--seeds", metavar="X", help="seeds, separated by commas [0,1,2; with fewer rounds than the paper 0]"
    )
    parser.add_argument("--rounds", metavar="N", help="rounds of each run [the paper's]")
    parser.add_argument("--fraction", metavar="X", help="share of the paper's rounds, such as 1/10")
    parser.add_argument("--budget", metavar="MINUTES", help="stop after so many minutes; the next call continues")
    parser.add_argument("--dry-run", action="store_true", help="print the plan with estimated times, do not train")
    parser.add_argument("--render-only", action="store_true", help="only write the page from the results so far")
    parser.add_argument("--out", default="results", metavar="X", help="folder for the results [%(default)s]")
    parser.add_argument(
        "--into", metavar="PAGE", help="only write tables of the results into a page that has marks for them"
    )
    parser.add_argument(
        "--runs", default="runs/reproduce", metavar="X", help="folder for the run directories [%(default)s]"
    )
    parser.add_argument("--docs", default="docs", metavar="X", help="folder for the page [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_config(parser, "", {}, without=("method", "seed", "out", "data", "setting", "rounds"))
    return vars(parser.parse_exactly(argv))


def _words(text: str) -> list[str]:
    words = [w.strip() for w in text.split(",")]
    if not all(words):
        raise UserError(f"{text!r} has an empty name: expected names separated by commas")
    return words


def _settings(text: str) -> list[str]:
    """Parse settings, separated by commas. One such as levels:1,1/4 contains commas and must stand alone."""
    return [text] if ":" in text else _words(text)


def _length(rounds: str | None, fraction: str | None) -> Fraction | int:
    if rounds is not None and fraction is not None:
        raise UserError("--rounds and --fraction both set the number of rounds: give one of them")
    if rounds is not None:
        return whole_number("rounds", rounds, at_least=1)
    from pa3dfl.core.options.capacity import parse_ratio

    return parse_ratio(fraction or 1, "fraction")


def _minutes(text: str | None) -> float | None:
    if text is None:
        return None
    minutes: float = coerce("budget", text, float)
    check_range("budget", minutes, above=0)
    return 60 * minutes
