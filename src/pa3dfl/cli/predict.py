"""The command `pa3dfl predict`."""

import json
from pathlib import Path

from pa3dfl.cli.flags import Parser
from pa3dfl.core.logging import log


def predict(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl predict",
        description="Predict the labels of a file's rows with an exported model, or with the one of a node.",
    )
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="folder of an exported model or a node, or a file in it"
    )
    parser.add_argument("file", type=Path, metavar="FILE", help=".npz with x and y")
    parser.add_argument("--out", type=Path, metavar="X", help="write labels and probabilities to this .npz instead")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    import numpy as np

    from pa3dfl.data import load_own
    from pa3dfl.runs import personal

    arrays = load_own(args.file)
    p = personal.predict(personal.read(args.model), arrays)
    label = p.argmax(1)
    facts = {"rows": len(label), "accuracy": float((label == arrays.y).mean()), "labels": label.tolist()}
    if args.out is not None:
        np.savez(args.out, label=label, probability=p)
    if args.json:
        print(json.dumps(facts))
        return
    print(f"{facts['rows']} rows, accuracy {100 * facts['accuracy']:.1f}%")
    if args.out is None:
        print(" ".join(map(str, label.tolist())))
    else:
        log.info(f"labels and probabilities are in {args.out}")
