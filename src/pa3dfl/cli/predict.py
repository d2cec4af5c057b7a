"""The command `pa3dfl predict`."""

import json
from pathlib import Path

from pa3dfl.cli.flags import Parser
from pa3dfl.core.logging import log
from pa3dfl.core.words import counted


def predict(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl predict",
        description="Predict the labels of a file's rows with an exported model, or with the one of a node.",
    )
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="folder of an exported model or a node, or a file in it"
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="rows as in the data of the run, with or without labels; or .npz with x"
    )
    parser.add_argument("--out", type=Path, metavar="X", help="write labels and probabilities to this .npz instead")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    import numpy as np

    from pa3dfl.data import UNKNOWN, load_rows
    from pa3dfl.runs import personal

    model = personal.read(args.model)
    coding = model.card.get("coding", {})
    arrays = load_rows(args.file, coding)
    p = personal.predict(model, arrays)
    number = p.argmax(1)
    known = UNKNOWN not in arrays.y
    names = coding.get("labels", range(p.shape[1]))
    labels = [names[i] for i in number.tolist()]
    accuracy = float((number == arrays.y).mean()) if known else None
    facts = {"rows": len(number), "accuracy": accuracy, "labels": labels}
    if args.out is not None:
        np.savez(args.out, label=number, probability=p, names=np.array([str(name) for name in names]))
    if args.json:
        print(json.dumps(facts))
        return
    print(counted(len(labels), "row") + ("" if accuracy is None else f", accuracy {100 * accuracy:.1f}%"))
    if args.out is None:
        print(" ".join(str(v) if str(v).strip() else repr(v) for v in labels))
    else:
        log.info(f"labels and probabilities are in {args.out}")
