"""Commands that train."""

import json
from dataclasses import Field
from pathlib import Path
from typing import Any

from pa3dfl.cli.flags import Parser, add_config, peek, say
from pa3dfl.cli.printing import console, print_records, show
from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config, coerce, read_yaml
from pa3dfl.runs.page import Renewed


def run(argv: list[str]) -> None:
    from pa3dfl import methods
    from pa3dfl.experiments import api

    file = next((w for w in argv if w.endswith((".yaml", ".yml")) and not w.startswith("-")), None)
    given = read_yaml(Path(file)) if file else {}
    name = peek(argv, "--method") or str(given.get("method", Config.method))
    cls = methods.find(name)
    parser = Parser(
        "pa3dfl run",
        usage="pa3dfl run [CONFIG.yaml] [options]",
        description="Train. Flags win over CONFIG.yaml, which wins over the data's presets.",
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="options as a YAML mapping, without dashes")
    add_config(parser, cls.name, api.option_fields(cls))
    parser.add_argument("--overwrite", action="store_true", help="replace a run that is already in the run directory")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    args = vars(parser.parse_exactly(argv))
    as_json, overwrite, named = args.pop("json"), args.pop("overwrite"), args.pop("config")
    if named != file:
        raise UserError(f"config {named!r} is not a .yaml file: options are given with dashes, such as --rounds 10")
    given.pop("data_fingerprint", None)
    config = api.configure(given | args)
    with Renewed(Path(config.out or ""), say) as renewed:
        summary = api.run(config, overwrite, renewed)
    show([Path(summary["path"])], summary if as_json else None)


def resume(argv: list[str]) -> None:
    parser = Parser("pa3dfl resume", description="Go on after the last round that was kept, with the same numbers.")
    parser.add_argument("dir", type=Path, metavar="DIR", help="run directory")
    parser.add_argument("--data-dir", metavar="X", help="where to look for data first, if it has moved")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    args = parser.parse_exactly(argv)
    from pa3dfl.experiments import api

    with Renewed(args.dir, say) as renewed:
        summary = api.resume(args.dir, args.data_dir, renewed)
    show([args.dir], summary if args.json else None)


def compare_methods(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl compare",
        usage="pa3dfl compare [CONFIG.yaml] [--methods a,b,… | all] [--seeds 0,1,…] [--quick] [options]",
        description="Train several methods and seeds on equal terms, skip what is done, and put them in one table.",
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="options as a YAML mapping, without dashes")
    parser.add_argument(
        "--methods", default="all", metavar="X", help="names with commas in between; all, ablations [all]"
    )
    parser.add_argument("--seeds", default="0", metavar="X", help="seeds with commas in between [0]")
    parser.add_argument("--quick", action="store_true", help="a small federation on the bundled data")
    parser.add_argument("--out", default="runs/compare", metavar="X", help="folder of the runs [runs/compare]")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    add_config(parser, "", {}, without=("method", "seed", "out"))
    args = vars(parser.parse_exactly(argv))
    from pa3dfl.experiments.compare import QUICK, compare, equal_terms, terms
    from pa3dfl.runs import report

    file, chosen, seeds, out = args.pop("config"), args.pop("methods"), args.pop("seeds"), Path(args.pop("out"))
    as_json, quick = args.pop("json"), args.pop("quick")
    given = (QUICK if quick else {}) | (read_yaml(Path(file)) if file else {}) | args
    names = _methods(chosen)
    with Renewed(out, say) as renewed:
        paths = compare(given, names, _seeds(seeds), out, renewed)
    runs = [report.read_run(p) for p in paths]
    own = [[r for r in runs if r.summary["method"] == name] for name in names]
    records = [row | terms(its[0].path) for row, its in zip(report.across_seeds(runs), own, strict=True)]
    by_method = [report.average(its) for its in own]
    picture = report.learning_curve(by_method, out / "learning_curve.png")
    (out / "table.json").write_text(json.dumps(records, indent=2) + "\n")
    if as_json:
        print(json.dumps(records, indent=2))
        return
    report.render(records, console())
    same, different = equal_terms(records)
    print("for all: " + ", ".join(f"{k} {v}" for k, v in same.items()))
    for option, values in different.items():
        print(f"{option}: " + ", ".join(f"{method} {v}" for method, v in values.items()))
    page = [renewed.out] if renewed.out.exists() else []
    print(picture, out / "table.json", *page, sep="\n")


def tune_methods(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl tune",
        usage="pa3dfl tune METHOD[,METHOD…]|all [CONFIG.yaml] [--grid lr=0.01,0.1 …] [--seeds 0,1,…] [options]",
        description="Try every setting of a grid and choose by validation accuracy. What is done is not done again. "
        "best.yaml is\nfor `pa3dfl run` and `pa3dfl compare`. An option that is given is not tuned.",
    )
    parser.add_argument("methods", metavar="METHOD", help="one method, several with commas in between, or all")
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="options as a YAML mapping, without dashes")
    grids = "option=value,value,… (repeat for more), or of options together a+b=1+2,3+4 [the paper's grid]"
    parser.add_argument("--grid", action="append", default=[], metavar="X", help=grids)
    trials_help = "settings of each method: drawn from its grid, or its grid and further step sizes within it"
    parser.add_argument("--trials", metavar="X", help=trials_help)
    seeds_help = "seeds with commas in between; 0 to 9 are for published results [1000]"
    parser.add_argument("--seeds", default="1000", metavar="X", help=seeds_help)
    parser.add_argument("--quick", action="store_true", help="a small federation on the bundled data")
    parser.add_argument("--out", metavar="X", help="folder of the trials [runs/tune-METHOD]")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    single = _methods(argv[0]) if argv and not argv[0].startswith("-") else []
    options = _options(single[0]) if len(single) == 1 else {}
    add_config(parser, "".join(single), options, without=("method", "seed", "out"))
    args = vars(parser.parse_exactly(argv))
    from pa3dfl.experiments import grid, tune
    from pa3dfl.experiments.compare import QUICK

    words, file, n, seeds = args.pop("grid"), args.pop("config"), args.pop("trials"), _seeds(args.pop("seeds"))
    as_json, quick, chosen, out = args.pop("json"), args.pop("quick"), args.pop("methods"), args.pop("out")
    out = Path(out or "runs/tune-" + chosen.replace(":", "-").replace(",", "-"))
    count = None if n is None else coerce("trials", n, int)
    if count is not None and count < 1:
        raise UserError(f"trials is {count}: expected at least 1")
    given = (QUICK if quick else {}) | (read_yaml(Path(file)) if file else {}) | args
    names = _methods(chosen)
    trials = tune.plan(given, names, grid.parse(words), seeds, out, count)
    settings = {name: sum(t.config.method == name for t in trials) // len(seeds) for name in names}
    if len(names) == 1 or len(set(settings.values())) > 1:
        tried = " + ".join(map(str, settings.values())) + " settings"
    else:
        tried = f"{settings[names[0]]} settings of each method"
    say(f"{len(trials)} trials: {tried} × {len(seeds)} seeds, in {out}")
    if len(set(settings.values())) > 1:
        say("methods have different numbers of settings: --trials N gives each of them N")
    rows = tune.ranking(tune.run(trials, out))
    best = tune.write_best(tune.best(given, rows), out)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    columns = ("method", "options", "val_accuracy", "deviation", "best_round", "seconds", "reason")
    print_records(
        [row | {"options": tune.shown(row["options"])} for row in rows],
        [c for c in columns if any(row[c] is not None for row in rows)],
        as_json=False,
    )
    print(best, out / "trials.csv", sep="\n")


def _methods(words: str) -> list[str]:
    from pa3dfl import methods

    groups = {"all": methods.registry(), "ablations": methods.registry(methods.ABLATIONS)}
    names = list(dict.fromkeys(name for word in words.split(",") for name in groups.get(word, [word])))
    for name in names:
        methods.find(name)
    return names


def _options(method: str) -> dict[str, Field[Any]]:
    from pa3dfl import methods
    from pa3dfl.experiments import api

    return api.option_fields(methods.find(method))


def _seeds(words: str) -> list[int]:
    return [coerce("seeds", s, int) for s in words.split(",")]
