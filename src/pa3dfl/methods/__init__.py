"""The registry of methods: the folder itself. One file, one subclass of `Method`."""

import difflib
import importlib
import inspect
import pkgutil
from functools import cache

from pa3dfl.errors import UserError
from pa3dfl.methods.base import Method, Update, option
from pa3dfl.models.registry import import_object

__all__ = ["Method", "Update", "find", "option", "registry"]


@cache
def registry() -> dict[str, type[Method]]:
    found: dict[str, type[Method]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for cls in vars(module).values():
            if inspect.isclass(cls) and issubclass(cls, Method) and cls.__module__ == module.__name__ and cls != Method:
                found[cls.name] = cls
    return dict(sorted(found.items()))


def find(name: str) -> type[Method]:
    """A method by its name, or somebody's own as `package.module:Class`."""
    if name in registry():
        return registry()[name]
    if ":" in name:
        cls = import_object(name, "method")
        if not (inspect.isclass(cls) and issubclass(cls, Method)):
            raise UserError(f"method {name!r} is not a subclass of pa3dfl.methods.Method")
        return cls
    close = difflib.get_close_matches(name, registry(), 1)
    hint = f"; did you mean {close[0]}?" if close else "; your own is given as package.module:Class"
    raise UserError(f"unknown method {name!r}: expected one of {', '.join(registry())}{hint}")
