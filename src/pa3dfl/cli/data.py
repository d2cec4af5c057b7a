"""The command `pa3dfl data`."""

from pathlib import Path

from pa3dfl.cli.flags import Parser, add_fields
from pa3dfl.cli.printing import print_records
from pa3dfl.core.words import counted

FLAGS = (
    "label_column", "client_column", "input_columns", "partition", "clients", "small_clients", "seed",
    "dirichlet_alpha", "classes_per_client", "data_dir",
)  # fmt: skip


def data(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl data",
        description="List the data sets; with NAME, describe how it is distributed to clients.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="data set, file or folder to describe")
    add_fields(parser, FLAGS)
    parser.add_argument("--out", type=Path, metavar="X", help="file of the picture [runs/partition-NAME.png]")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    import numpy as np

    from pa3dfl import runs as report
    from pa3dfl.data import available, label_counts
    from pa3dfl.methods import assembly

    given = {k: v for k, v in vars(args).items() if k in FLAGS}
    folder = Path(given["data_dir"]) if "data_dir" in given else None
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
            print("searched: " + ", ".join(found[-1]["searched"] or []))
        return
    config = assembly.configure({"data": args.name, **given})
    arrays = assembly.arrays_of(config)
    kind, rows = assembly.owners(config, arrays)
    counts = label_counts(rows, arrays.y, arrays.classes)
    sizes = counts.sum(1)
    title = f"{Path(args.name).stem}, {kind}, {counted(len(rows), 'client')}, seed {config.seed}"
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
