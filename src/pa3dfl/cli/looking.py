"""Commands that look, at runs, methods, costs and data, and train nothing."""

import json
from collections.abc import Mapping
from pathlib import Path

from pa3dfl.cli.flags import Parser
from pa3dfl.cli.printing import console, print_records
from pa3dfl.core.errors import UserError
from pa3dfl.core.options.capacity import parse_ratio
from pa3dfl.core.options.config import Config, coerce
from pa3dfl.core.options.names import MODELS, methods

SHAPES: Mapping[str, tuple[tuple[int, ...], int]] = {
    "cnn-fashion": ((1, 28, 28), 10),
    "cnn-cifar100": ((3, 32, 32), 100),
    "resnet18-gn": ((3, 32, 32), 10),
}


def report_runs(argv: list[str]) -> None:
    parser = Parser("pa3dfl report", description="Table and pictures of runs, side by side.")
    parser.add_argument("dirs", nargs="+", type=Path, metavar="DIR", help="run directory, or a folder of them")
    parser.add_argument("--out", type=Path, metavar="X", help="folder for the pictures [that of the first run]")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    args = parser.parse_exactly(argv)
    from pa3dfl.runs import report

    runs = report.find_runs(args.dirs)
    records = report.comparison(runs)
    out = args.out or args.dirs[0]
    pictures = [report.learning_curve(runs, out / "learning_curve.png")]
    by_capacity = report.capacity_picture(runs, out / "capacity.png")
    pictures += [by_capacity] if by_capacity else []
    if args.json:
        print(json.dumps(records, indent=2))
        return
    report.render(records, console())
    table = out / "table.json"
    table.write_text(json.dumps(records, indent=2) + "\n")
    for path in (*pictures, table):
        print(path)


def write_page(argv: list[str]) -> None:
    parser = Parser("pa3dfl page", description="One HTML file that shows runs and their clients, and opens offline.")
    parser.add_argument("dirs", nargs="+", type=Path, metavar="RUN", help="run directory, or a folder of them")
    parser.add_argument("-o", "--out", type=Path, metavar="X", help="the file [report.html in the first folder]")
    args = parser.parse_exactly(argv)
    from pa3dfl.runs import page

    print(page.write(args.dirs, args.out or args.dirs[0] / page.NAME))


def list_methods(argv: list[str]) -> None:
    parser = Parser("pa3dfl methods", description="The methods, and how each uses capacity and personalises.")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    records = [
        {"method": name, "summary": method.summary, "options": method.options} for name, method in methods().items()
    ]
    print_records(records, ("method", "summary"), args.json)


def list_costs(argv: list[str]) -> None:
    parser = Parser("pa3dfl cost", description="Forward multiply-adds of a batch, sizes, and memory if asked for.")
    parser.add_argument("--model", default="cnn-fashion", metavar="X", help=f"{', '.join(MODELS)} or your own")
    parser.add_argument("--method", action="append", metavar="X", help="one method (repeat for more) [all]")
    parser.add_argument("--batch", default="50", metavar="X", help="batch size [50]")
    parser.add_argument("--p-min", default="1/16", metavar="X", help="the narrowest width [1/16]")
    parser.add_argument("--width", action="append", metavar="X", help="one width (repeat for more) [all]")
    parser.add_argument("--memory", action="store_true", help="measure the peak memory of training, on real steps")
    parser.add_argument("--device", default="auto", metavar="X", help="where to measure it: auto, cpu or cuda [auto]")
    parser.add_argument("--input-shape", metavar="C,H,W", help="shape of one input [by model]")
    parser.add_argument("--classes", metavar="X", help="number of classes [by model]")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    from pa3dfl.engines.cost import COLUMNS, cost, widths
    from pa3dfl.experiments import api
    from pa3dfl.methods import find

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
    known, asked = widths(p_min), [parse_ratio(w, "width") for w in args.width or ()]
    for w in asked:
        if w not in known:
            raise UserError(f"width {w} is not one of the multiples of p_min: expected {known[0]}, … or {known[-1]}")
    device = api.device_of(args.device)
    records = []
    for name in args.method or methods():
        method = find(name)()
        model = api.make_model(args.model, method, shape, classes, p_min)
        records += cost(method, model, p_min, batch, asked or known, device if args.memory else None)
    print_records(records, [c for c in COLUMNS if any(r[c] is not None for r in records)], args.json)


def describe_data(argv: list[str]) -> None:
    parser = Parser("pa3dfl data", description="What data is here and where it was looked for; or one partition.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="show who gets which labels of this data")
    for flag in ("partition", "clients", "seed", "dirichlet-alpha", "classes-per-client"):
        parser.add_argument(f"--{flag}", metavar="X", help="as in `pa3dfl run`")
    parser.add_argument("--data-dir", metavar="X", help="where to look first")
    parser.add_argument("--out", type=Path, metavar="X", help="file for the picture [runs/partition-NAME.png]")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    import numpy as np

    from pa3dfl.data import available, label_counts, load
    from pa3dfl.experiments import api
    from pa3dfl.runs import report

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
        print_records([f | {"found": f["found"] or "no: " + str(f["hint"])} for f in found] if not args.json else found,
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
    print_records([record], tuple(record), args.json)
