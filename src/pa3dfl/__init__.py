"""Pa3dFL: personal models for devices that differ in both data and capacity."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pa3dfl.core.errors import UserError
    from pa3dfl.core.options.config import Config
    from pa3dfl.experiments.api import resume, run
    from pa3dfl.experiments.loaded import load
    from pa3dfl.methods import Client, Method, Task, Update

__version__ = "0.1.0"

__all__ = ["Client", "Config", "Method", "Task", "Update", "UserError", "load", "resume", "run"]

_MODULES = {
    **dict.fromkeys(("Client", "Method", "Task", "Update"), "methods"),
    "Config": "core.options.config",
    "UserError": "core.errors",
    "load": "experiments.loaded",
    "resume": "experiments.api",
    "run": "experiments.api",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used: most of them need PyTorch, which takes seconds."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
