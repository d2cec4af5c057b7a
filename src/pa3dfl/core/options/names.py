"""Names of data sets, partitions, models and methods, found without imports so that `--help` need not load PyTorch."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

DATA = ("fashion-mnist-10k", "fashion-mnist", "cifar10", "cifar100", "hapt", "shakespeare", "inst-eval")
PARTITIONS = ("iid", "dirichlet", "classes", "natural")
MODELS = (
    "cnn-fashion", "cnn-cifar100", "resnet18-gn", "lstm-text", "transformer-text", "transformer-sensor", "cnn-sensor",
    "vit-small", "mlp-tabular",
)  # fmt: skip
TITLES = {
    "pa3dfl": "Pa3dFL", "pa3dfl-flanc": "Pa3dFL with FLANC's decomposition",
    "pa3dfl-without-hn": "Pa3dFL without the hyper-network", "fedavg": "FedAvg", "ditto": "Ditto", "pfedhn": "pFedHN",
    "flanc": "FLANC", "fjord": "Fjord", "heterofl": "HeteroFL", "fedrolex": "FedRolex", "local-only": "LocalOnly",
    "lg-fedavg": "LG-FedAvg", "tailorfl": "TailorFL", "pfedgate": "pFedGate",
}  # fmt: skip
"""What texts and pictures call the methods."""


@dataclass(frozen=True)
class Described:
    """A method's summary and the defaults of its options."""

    summary: str
    options: dict[str, Any]


@cache
def methods() -> dict[str, Described]:
    """The methods by name, parsed from the source files in the folder `methods`."""
    folder = resources.files("pa3dfl") / "methods"
    files = [f if f.name.endswith(".py") else f / "method.py" for f in folder.iterdir()]
    return dict(sorted(found for f in files if f.is_file() for found in _methods_in(f.read_text("utf-8"))))


def _methods_in(source: str) -> Iterator[tuple[str, Described]]:
    """Find classes with a literal `name` and `summary`, and their fields `x: T = option(default, …)`."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            facts: dict[str, Any] = {}
            options: dict[str, Any] = {}
            for line in node.body:
                match line:
                    case ast.Assign(targets=[ast.Name("name" | "summary" as key)], value=ast.Constant(value)):
                        facts[key] = value
                    case ast.AnnAssign(target=ast.Name(key), value=ast.Call(ast.Name("option"), [default, *_])):
                        options[key] = ast.literal_eval(default)
            if facts.keys() == {"name", "summary"}:
                yield facts["name"], Described(facts["summary"], options)
