"""The command that makes the paper's evidence."""

from fractions import Fraction
from pathlib import Path
from typing import Any

from pa3dfl.cli.flags import Parser, add_config
from pa3dfl.cli.printing import print_records
from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.core.options.config import coerce
from pa3dfl.experiments.reproduce.paper import DATA, PARTS

DESCRIPTION = """\
Run the paper's experiments and render docs/reproduction.md from the results there are.

Parts: overall, efficiency, ablation, hn-cost, figures; all. The most telling runs come first: Hetero before Ideal,
Pa3dFL and its strongest rivals before the others, further seeds last. What is done is skipped, what was begun goes on.
Several processes may work on one plan: each run has a lock. All other options of `pa3dfl run` are passed on."""


def reproduce(argv: list[str]) -> None:
    args = _arguments(argv)
    from pa3dfl.experiments.reproduce import command

    parts, show, budget = args.pop("parts"), args.pop("json"), _minutes(args.pop("budget"))
    places = command.Places(Path(args.pop("out")), Path(args.pop("runs")), Path(args.pop("docs")))
    dry, render_only = args.pop("dry_run"), args.pop("render_only")
    chosen = command.parts_of(parts or ["all"])
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
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} or all [all]")
    parser.add_argument("--data", default=",".join(DATA), metavar="X", help="data sets with commas [%(default)s]")
    parser.add_argument("--setting", default="hetero,ideal", metavar="X", help="settings with commas [%(default)s]")
    parser.add_argument(
        "--methods", metavar="X", help="methods with commas; all, ablations, or pa3dfl@lam=0.1 [by part]"
    )
    parser.add_argument(
        "--seeds", metavar="X", help="seeds with commas [0,1,2; 0 where rounds are fewer than the paper's]"
    )
    parser.add_argument("--rounds", metavar="N", help="rounds of each run [the paper's]")
    parser.add_argument("--fraction", metavar="X", help="part of the paper's rounds, such as 1/10")
    parser.add_argument("--budget", metavar="MINUTES", help="stop after so many minutes; the next call goes on")
    parser.add_argument("--dry-run", action="store_true", help="show the plan with estimated times, train nothing")
    parser.add_argument("--render-only", action="store_true", help="only render the page from the results")
    parser.add_argument("--out", default="results", metavar="X", help="folder of the results [%(default)s]")
    parser.add_argument("--runs", default="runs/reproduce", metavar="X", help="folder of run directories [%(default)s]")
    parser.add_argument("--docs", default="docs", metavar="X", help="folder of the page [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_config(parser, "", {}, without=("method", "seed", "out", "data", "setting", "rounds"))
    return vars(parser.parse_exactly(argv))


def _words(text: str) -> list[str]:
    words = [w.strip() for w in text.split(",")]
    if not all(words):
        raise UserError(f"{text!r} has an empty name: expected names with commas in between")
    return words


def _settings(text: str) -> list[str]:
    """Settings with commas in between; one with levels has commas of its own and stands alone."""
    return [text] if ":" in text else _words(text)


def _length(rounds: str | None, fraction: str | None) -> Fraction | int:
    if rounds is not None and fraction is not None:
        raise UserError("--rounds and --fraction both say how long to train: give one of them")
    if rounds is not None:
        n = coerce("rounds", rounds, int)
        if n < 1:
            raise UserError(f"rounds is {n}: expected at least 1")
        return n
    from pa3dfl.core.options.capacity import parse_ratio

    return parse_ratio(fraction or 1, "fraction")


def _minutes(text: str | None) -> float | None:
    if text is None:
        return None
    minutes = coerce("budget", text, float)
    if not 0 < minutes < float("inf"):
        raise UserError(f"budget is {text}: expected minutes above 0")
    return 60 * minutes
