"""The command `pa3dfl cost`."""

from collections.abc import Mapping

from pa3dfl.cli.flags import Parser, add_fields
from pa3dfl.cli.printing import print_records
from pa3dfl.core.errors import UserError
from pa3dfl.core.options import names
from pa3dfl.core.options.capacity import parse_ratio
from pa3dfl.core.options.config import Config
from pa3dfl.core.options.schema import coerce
from pa3dfl.core.words import counted

SHAPES: Mapping[str, tuple[tuple[int, ...], int]] = {
    "cnn-fashion": ((1, 28, 28), 10),
    "cnn-cifar100": ((3, 32, 32), 100),
    "resnet18-gn": ((3, 32, 32), 10),
}


def cost(argv: list[str]) -> None:
    parser = Parser("pa3dfl cost", description="Print parameters, bytes and multiply-adds by method and width.")
    parser.add_argument(
        "--model",
        default="cnn-fashion",
        metavar="X",
        help="a model of `pa3dfl run` [%(default)s]",
    )
    parser.add_argument("--method", action="append", metavar="X", help="a method; may be repeated [all]")
    add_fields(parser, ("batch",))
    parser.add_argument("--p-min", default="1/16", metavar="X", help="smallest width [1/16]")
    parser.add_argument("--width", action="append", metavar="X", help="a width; may be repeated [all]")
    parser.add_argument("--memory", action="store_true", help="measure the peak memory of training steps too")
    parser.add_argument("--device", default="auto", metavar="X", help="device for --memory: auto, cpu or cuda [auto]")
    parser.add_argument("--input-shape", metavar="C,H,W", help="shape of one input [by model]")
    parser.add_argument("--classes", metavar="X", help="number of classes [by model]")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    from pa3dfl.engines.cost import COLUMNS, widths
    from pa3dfl.engines.cost import cost as costs_of
    from pa3dfl.methods import assembly, find

    config = Config(p_min=str(parse_ratio(args.p_min, "p_min")), batch=getattr(args, "batch", Config.batch))
    p_min, batch = config.narrowest(), config.batch
    shape, classes = SHAPES.get(args.model, ((3, 32, 32), 10))
    if args.input_shape:
        shape = tuple(coerce("input-shape", n, int) for n in args.input_shape.split(","))
    if args.classes:
        classes = coerce("classes", args.classes, int)
    if classes < 2 or min(shape) < 1:
        found = counted(classes, "class", "classes")
        raise UserError(f"{found} of inputs {shape}: expected at least 2 classes and sizes of at least 1")
    known, asked = widths(p_min), [parse_ratio(w, "width") for w in args.width or ()]
    for w in asked:
        if w not in known:
            raise UserError(f"width {w} is not one of the multiples of p_min: expected {known[0]}, … or {known[-1]}")
    device = assembly.device_of(args.device)
    records = []
    for name in args.method or names.methods():
        method = find(name)()
        model = assembly.make_model(args.model, method, shape, classes, p_min)
        records += costs_of(method, model, p_min, batch, asked or known, device if args.memory else None)
    print_records(records, [c for c in COLUMNS if any(r[c] is not None for r in records)], args.json)
