"""The command `pa3dfl tune`."""

import json
from pathlib import Path

from pa3dfl.cli.flags import Parser, add_config, parse_methods, parse_seeds, read_config
from pa3dfl.cli.printing import print_records
from pa3dfl.core.logging import log
from pa3dfl.core.options.schema import Field, whole_number
from pa3dfl.core.words import counted


def tune(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl tune",
        usage="pa3dfl tune METHOD[,METHOD…]|all [CONFIG.yaml] [--grid lr=0.01,0.1 …] [--seeds 0,1,…] [options]",
        description="Train with every combination of a grid of options and choose the best by validation accuracy.\n"
        "Finished trials are not repeated. `pa3dfl run` and `pa3dfl compare` read the file best.yaml that it writes.\n"
        "Options given as flags or in CONFIG.yaml are not tuned.",
    )
    parser.add_argument("methods", metavar="METHOD", help="methods, separated by commas; or all")
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="options as a YAML mapping")
    grids = "option=value,value,…, or options that change together: a+b=1+2,3+4; may be repeated [the paper's grid]"
    parser.add_argument("--grid", action="append", default=[], metavar="X", help=grids)
    trials_help = (
        "trials of each method and seed: a random part of its grid, or its grid with further learning rates [the grid]"
    )
    parser.add_argument("--trials", metavar="X", help=trials_help)
    seeds_help = "seeds, separated by commas; use none from 0 to 9, which published results use [1000]"
    parser.add_argument("--seeds", default="1000", metavar="X", help=seeds_help)
    parser.add_argument("--quick", action="store_true", help="use a small federation on the bundled data")
    parser.add_argument("--out", metavar="X", help="folder for the trials [runs/tune-METHOD]")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    single = parse_methods(argv[0]) if argv and not argv[0].startswith("-") else []
    options = _options(single[0]) if len(single) == 1 else {}
    add_config(parser, "".join(single), options, without=("method", "seed", "out"))
    args = vars(parser.parse_exactly(argv))
    from pa3dfl.experiments import grid
    from pa3dfl.experiments import tune as tuning
    from pa3dfl.experiments.compare import QUICK

    words, file, n, seeds = args.pop("grid"), args.pop("config"), args.pop("trials"), parse_seeds(args.pop("seeds"))
    as_json, quick, chosen, out = args.pop("json"), args.pop("quick"), args.pop("methods"), args.pop("out")
    out = Path(out or "runs/tune-" + chosen.replace(":", "-").replace(",", "-"))
    count = None if n is None else whole_number("trials", n, at_least=1)
    given = (QUICK if quick else {}) | read_config(file) | args
    names = parse_methods(chosen)
    trials = tuning.plan(given, names, grid.parse(words), seeds, out, count)
    settings = {name: sum(t.config.method == name for t in trials) // len(seeds) for name in names}
    if len(names) == 1 or len(set(settings.values())) > 1:
        *others, last = settings.values()
        tried = " + ".join([*map(str, others), counted(last, "setting")])
    else:
        tried = f"{counted(settings[names[0]], 'setting')} of each method"
    log.info(f"{counted(len(trials), 'trial')}: {tried} × {counted(len(seeds), 'seed')}, in {out}")
    if len(set(settings.values())) > 1:
        log.info("methods have different numbers of settings: --trials N gives each of them N")
    rows = tuning.ranking(tuning.run(trials, out))
    best = tuning.write_best(tuning.best(given, rows), out)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    columns = ("method", "options", "val_accuracy", "deviation", "best_round", "seconds", "reason")
    print_records(
        [row | {"options": tuning.shown(row["options"])} for row in rows],
        [c for c in columns if any(row[c] is not None for row in rows)],
        as_json=False,
    )
    print(best, out / "trials.csv", sep="\n")


def _options(method: str) -> dict[str, Field]:
    from pa3dfl import methods
    from pa3dfl.methods import assembly

    return assembly.option_fields(methods.find(method))
