"""The command-line tool: arguments in, tables out. Nothing is computed here."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from pa3dfl import api, methods, report
from pa3dfl.capacity import parse_ratio
from pa3dfl.compare import QUICK, compare
from pa3dfl.config import Config, coerce, read_yaml
from pa3dfl.cost import cost, widths
from pa3dfl.data import available, label_counts, load
from pa3dfl.deploy.commands import deploy, predict
from pa3dfl.errors import UserError
from pa3dfl.federation import Interrupted
from pa3dfl.flags import Parser, add_config, peek, say
from pa3dfl.models import NAMES as MODELS

USAGE = """pa3dfl: personal models for devices that differ in both data and capacity

  pa3dfl run [CONFIG.yaml] [--method … --data … --setting … --rounds … …]   train
  pa3dfl resume DIR                    go on with a run that was stopped
  pa3dfl report DIR…                   table and pictures of one or several runs
  pa3dfl compare                       several methods and seeds on equal terms, in one table
  pa3dfl methods                       what can be trained
  pa3dfl cost                          multiply-adds, parameters and bytes by method and width
  pa3dfl data [NAME]                   what data is here; with a name, who gets which labels
  pa3dfl deploy init|server|node|train a federation on real machines, see docs/deploy.md
  pa3dfl predict MODEL FILE            what a node's own model says of a file's rows

Every command takes --help; those that print a table take --json.
The shortest complete run: pa3dfl run --rounds 10
"""


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"pa3dfl {api.version()}")
        return 0
    try:
        if argv[0] not in COMMANDS:
            raise UserError(f"unknown command {argv[0]!r}: expected one of {', '.join(COMMANDS)}")
        COMMANDS[argv[0]](argv[1:])
    except UserError as e:
        say(str(e))
        return 2
    except Interrupted as e:
        say(f"stopped; {e.round} rounds are kept, `pa3dfl resume {e.path}` goes on from there")
        return 130
    except KeyboardInterrupt:
        say("stopped")
        return 130
    except OSError as e:
        say(f"{e.filename or 'a file'}: {e.strerror or e}")
        return 1
    return 0


def run(argv: list[str]) -> None:
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
    summary = api.run(api.configure(given | args), overwrite)
    _show([Path(summary["path"])], summary if as_json else None)


def resume(argv: list[str]) -> None:
    parser = Parser("pa3dfl resume", description="Go on after the last round that was kept, with the same numbers.")
    parser.add_argument("dir", type=Path, metavar="DIR", help="run directory")
    parser.add_argument("--data-dir", metavar="X", help="where to look for data first, if it has moved")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    args = parser.parse_exactly(argv)
    summary = api.resume(args.dir, args.data_dir)
    _show([args.dir], summary if args.json else None)


def report_runs(argv: list[str]) -> None:
    parser = Parser("pa3dfl report", description="Table and pictures of runs, side by side.")
    parser.add_argument("dirs", nargs="+", type=Path, metavar="DIR", help="run directory, or a folder of them")
    parser.add_argument("--out", type=Path, metavar="X", help="folder for the pictures [that of the first run]")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    args = parser.parse_exactly(argv)
    runs = report.find_runs(args.dirs)
    records = report.comparison(runs)
    out = args.out or args.dirs[0]
    pictures = [report.learning_curve(runs, out / "learning_curve.png")]
    by_capacity = report.capacity_picture(runs, out / "capacity.png")
    pictures += [by_capacity] if by_capacity else []
    if args.json:
        print(json.dumps(records, indent=2))
        return
    report.render(records, _console())
    table = out / "table.json"
    table.write_text(json.dumps(records, indent=2) + "\n")
    for path in (*pictures, table):
        print(path)


def compare_methods(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl compare",
        usage="pa3dfl compare [CONFIG.yaml] [--methods a,b,… | all] [--seeds 0,1,…] [--quick] [options]",
        description="Train several methods and seeds on equal terms, skip what is done, and put them in one table.",
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="options as a YAML mapping, without dashes")
    parser.add_argument("--methods", default="all", metavar="X", help="names with commas in between [all]")
    parser.add_argument("--seeds", default="0", metavar="X", help="seeds with commas in between [0]")
    parser.add_argument("--quick", action="store_true", help="a small federation on the bundled data")
    parser.add_argument("--out", default="runs/compare", metavar="X", help="folder of the runs [runs/compare]")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    add_config(parser, "", {}, without=("method", "seed", "out"))
    args = vars(parser.parse_exactly(argv))
    file, chosen, seeds, out = args.pop("config"), args.pop("methods"), args.pop("seeds"), Path(args.pop("out"))
    as_json, quick = args.pop("json"), args.pop("quick")
    given = (QUICK if quick else {}) | (read_yaml(Path(file)) if file else {}) | args
    names = list(methods.registry()) if chosen == "all" else chosen.split(",")
    for name in names:
        methods.find(name)
    paths = compare(given, names, [coerce("seeds", s, int) for s in seeds.split(",")], out)
    runs = [report.read_run(p) for p in paths]
    records = report.across_seeds(runs)
    by_method = [report.average([r for r in runs if r.summary["method"] == row["method"]]) for row in records]
    picture = report.learning_curve(by_method, out / "learning_curve.png")
    (out / "table.json").write_text(json.dumps(records, indent=2) + "\n")
    if as_json:
        print(json.dumps(records, indent=2))
        return
    report.render(records, _console())
    task = read_yaml(paths[0] / "config.yaml")
    print(
        "for all: " + ", ".join(f"{k} {task[k]}" for k in ("epochs", "batch", "clip_norm", "weight_decay", "augment"))
    )
    print(picture, out / "table.json", sep="\n")


def list_methods(argv: list[str]) -> None:
    parser = Parser("pa3dfl methods", description="The methods, and how each uses capacity and personalises.")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    records = [
        {"method": name, "summary": cls.summary, "options": {k: f.default for k, f in api.option_fields(cls).items()}}
        for name, cls in methods.registry().items()
    ]
    _print(records, ("method", "summary"), args.json)


def list_costs(argv: list[str]) -> None:
    parser = Parser("pa3dfl cost", description="Forward multiply-adds of a batch through the encoder, and sizes.")
    parser.add_argument("--model", default="cnn-fashion", metavar="X", help=f"{', '.join(MODELS)} or your own")
    parser.add_argument("--method", action="append", metavar="X", help="one method (repeat for more) [all]")
    parser.add_argument("--batch", default="50", metavar="X", help="batch size [50]")
    parser.add_argument("--p-min", default="1/16", metavar="X", help="the narrowest width [1/16]")
    parser.add_argument("--input-shape", metavar="C,H,W", help="shape of one input [by model]")
    parser.add_argument("--classes", metavar="X", help="number of classes [by model]")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    p_min = Config(p_min=str(parse_ratio(args.p_min, "p_min"))).narrowest()
    batch = coerce("batch", args.batch, int)
    if batch < 1:
        raise UserError(f"batch is {batch}: expected a whole number of at least 1")
    shape, classes = SHAPES.get(args.model, ((3, 32, 32), 10))
    if args.input_shape:
        shape = tuple(coerce("input-shape", n, int) for n in args.input_shape.split(","))
    if args.classes:
        classes = coerce("classes", args.classes, int)
    if classes < 2 or min(shape) < 1:
        raise UserError(f"{classes} classes of inputs {shape}: expected at least 2 classes and sizes of at least 1")
    records = []
    for name in args.method or methods.registry():
        method = methods.find(name)()
        model = api.make_model(args.model, method, shape, classes, p_min)
        records += cost(method, model, p_min, batch, widths(p_min))
    columns = (
        "method",
        "width",
        "encoder_multiply_adds",
        "encoder_parameters",
        "encoder_bytes",
        "bytes_down",
        "bytes_up",
    )
    _print(records, columns, args.json)


def describe_data(argv: list[str]) -> None:
    parser = Parser("pa3dfl data", description="What data is here and where it was looked for; or one partition.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="show who gets which labels of this data")
    for flag in ("partition", "clients", "seed", "dirichlet-alpha", "classes-per-client"):
        parser.add_argument(f"--{flag}", metavar="X", help="as in `pa3dfl run`")
    parser.add_argument("--data-dir", metavar="X", help="where to look first")
    parser.add_argument("--out", type=Path, metavar="X", help="file for the picture [runs/partition-NAME.png]")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    folder = Path(args.data_dir) if args.data_dir else None
    if args.name is None:
        found = [
            {
                "data": f.name,
                "found": str(f.path) if f.path else None,
                "searched": [str(p) for p in f.places],
                "hint": f.hint,
            }
            for f in available(folder)
        ]
        _print([f | {"found": f["found"] or "no: " + str(f["hint"])} for f in found] if not args.json else found,
               ("data", "found"), args.json)  # fmt: skip
        if not args.json:
            print("looked in: " + ", ".join(found[-1]["searched"] or []))
        return
    flags = ("partition", "clients", "seed", "dirichlet_alpha", "classes_per_client", "data_dir")
    given = {k: getattr(args, k) for k in flags if getattr(args, k) is not None}
    config = api.configure({"data": args.name, **given})
    arrays = load(config.data, api.folder_of(config))
    kind, rows = api.owners(config, arrays)
    counts = label_counts(rows, arrays.y, arrays.classes)
    sizes = counts.sum(1)
    title = f"{Path(args.name).stem}, {kind}, {len(rows)} clients, seed {config.seed}"
    out = args.out or Path("runs") / f"partition-{Path(args.name).stem}.png"
    record = {
        "data": args.name,
        "partition": kind,
        "clients": len(rows),
        "rows": int(sizes.sum()),
        "smallest_client": int(sizes.min()),
        "largest_client": int(sizes.max()),
        "classes_per_client": float((counts > 0).sum(1).mean()),
        "largest_class_share": float((counts.max(1) / np.maximum(sizes, 1)).mean()),
        "picture": str(report.partition_picture(counts, out, title)),
    }
    _print([record], tuple(record), args.json)


SHAPES: Mapping[str, tuple[tuple[int, ...], int]] = {
    "cnn-fashion": ((1, 28, 28), 10),
    "cnn-cifar100": ((3, 32, 32), 100),
    "resnet18-gn": ((3, 32, 32), 10),
}

COMMANDS: Mapping[str, Callable[[list[str]], None]] = {
    "run": run,
    "resume": resume,
    "report": report_runs,
    "compare": compare_methods,
    "methods": list_methods,
    "cost": list_costs,
    "data": describe_data,
    "deploy": deploy,
    "predict": predict,
}


def _show(paths: list[Path], summary: dict[str, Any] | None) -> None:
    if summary is not None:
        print(json.dumps(summary, indent=2))
    else:
        report.render(report.comparison(report.find_runs(paths)), _console())


def _print(records: Sequence[Mapping[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(records, indent=2))
        return
    if len(records) == 1:  # one record reads better downwards
        for k in columns:
            print(f"{k.replace('_', ' '):22} {_text(records[0][k])}")
        return
    table = Table(box=None, header_style="bold")
    for c in columns:
        numeric = all(isinstance(r[c], (int, float)) for r in records)
        table.add_column(c.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for r in records:
        table.add_row(*(_text(r[c]) for c in columns))
    _console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _console() -> Console:
    console = Console()
    # A pipe has no width; rich would assume 80 columns and fold.
    return console if console.is_terminal else Console(width=140)
