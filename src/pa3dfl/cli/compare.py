"""The command `pa3dfl compare`."""

import json
from pathlib import Path

from pa3dfl.cli.flags import Parser, add_config, parse_methods, parse_seeds, read_config
from pa3dfl.cli.printing import console
from pa3dfl.core.logging import log


def compare(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl compare",
        usage="pa3dfl compare [CONFIG.yaml] [--methods a,b,… | all] [--seeds 0,1,…] [--quick] [options]",
        description="Train several methods and seeds with equal options; print one table. Finished runs are skipped.",
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="options as a YAML mapping")
    parser.add_argument(
        "--methods", default="all", metavar="X", help="methods, separated by commas; or all, ablations [all]"
    )
    parser.add_argument("--seeds", default="0", metavar="X", help="seeds, separated by commas [0]")
    parser.add_argument("--quick", action="store_true", help="use a small federation on the bundled data")
    parser.add_argument("--out", default="runs/compare", metavar="X", help="folder for the runs [runs/compare]")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    add_config(parser, "", {}, without=("method", "seed", "out"))
    args = vars(parser.parse_exactly(argv))
    from pa3dfl import runs as report
    from pa3dfl.experiments.compare import QUICK, equal_terms, terms
    from pa3dfl.experiments.compare import compare as train
    from pa3dfl.runs.page import Renewed

    file, chosen, seeds, out = args.pop("config"), args.pop("methods"), args.pop("seeds"), Path(args.pop("out"))
    as_json, quick = args.pop("json"), args.pop("quick")
    given = (QUICK if quick else {}) | read_config(file) | args
    names = parse_methods(chosen)
    with Renewed(out, log.info) as renewed:
        paths = train(given, names, parse_seeds(seeds), out, [renewed])
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
    print("equal for all: " + ", ".join(f"{k} {v}" for k, v in same.items()))
    for option, values in different.items():
        print(f"{option}: " + ", ".join(f"{method} {v}" for method, v in values.items()))
    page = [renewed.out] if renewed.out.exists() else []
    print(picture, out / "table.json", *page, sep="\n")
