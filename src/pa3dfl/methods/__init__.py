"""Federated learning methods, one file or folder each, and the registry that finds them in this folder.

`base` defines the interface, `problem` what a method may know, `common` what several methods share. No method imports
another. `sizes` counts parameters, `assembly` builds method, model and task from a config. Methods use models, data and
core; they know no engine.
"""

import importlib
import inspect
import pkgutil
from functools import cache

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.schema import suggest
from pa3dfl.core.randomness import generator, key
from pa3dfl.core.tree import Tree, mean
from pa3dfl.methods.base import Batch, Method, Score, Update, option
from pa3dfl.methods.problem import Client, Problem, Task
from pa3dfl.models.registry import import_object

__all__ = [
    "Batch",
    "Client",
    "Method",
    "Problem",
    "Score",
    "Task",
    "Tree",
    "Update",
    "find",
    "generator",
    "key",
    "mean",
    "option",
    "registry",
]

ABLATIONS = "pa3dfl/ablations"


@cache
def registry(folder: str = "") -> dict[str, type[Method]]:
    """The methods by name, or those of a folder below this one, such as `ABLATIONS`."""
    found: dict[str, type[Method]] = {}
    for info in pkgutil.iter_modules([f"{path}/{folder}" for path in __path__]):
        module = importlib.import_module(".".join([__name__, *filter(None, folder.split("/")), info.name]))
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__.startswith(module.__name__)
            if own and issubclass(cls, Method) and cls != Method:
                found[cls.name] = cls
    return dict(sorted(found.items()))


def find(name: str) -> type[Method]:
    """A method or an ablation by its name, or a user's own class given as `package.module:Class`."""
    known = registry() | registry(ABLATIONS)
    if name in known:
        return known[name]
    if ":" in name:
        cls = import_object(name, "method")
        if not (inspect.isclass(cls) and issubclass(cls, Method)):
            raise UserError(f"method {name!r} is not a subclass of pa3dfl.methods.Method")
        return cls
    hint = suggest(name, known, "your own is given as package.module:Class")
    raise UserError(f"unknown method {name!r}: expected one of {', '.join(registry())}; {hint}")
