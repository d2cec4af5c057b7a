"""The factory of a network by name: a built-in one, or a user's `package.module:factory`."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from torch import nn

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.names import MODELS
from pa3dfl.core.options.schema import suggest
from pa3dfl.models import sequences
from pa3dfl.models.cnn import cnn_cifar100, cnn_fashion
from pa3dfl.models.resnet import resnet18_gn

Factory = Callable[..., nn.Module]

_FACTORIES: dict[str, Factory] = {
    "cnn-fashion": cnn_fashion,
    "cnn-cifar100": cnn_cifar100,
    "resnet18-gn": resnet18_gn,
    "lstm-text": sequences.lstm_text,
    "transformer-text": sequences.transformer_text,
    "transformer-sensor": sequences.transformer_sensor,
    "cnn-sensor": sequences.cnn_sensor,
    "vit-small": sequences.vit_small,
    "mlp-tabular": sequences.mlp_tabular,
}


def factory_of(name: str) -> Factory:
    if name in _FACTORIES:
        return _FACTORIES[name]
    if ":" not in name:
        hint = suggest(name, MODELS, "your own is given as package.module:factory")
        raise UserError(f"unknown model {name!r}: expected one of {', '.join(MODELS)}; {hint}")
    return import_object(name, "model")


def import_object(path: str, what: str) -> Callable[..., nn.Module]:
    """The object at `package.module:name`, looked for in the current directory too, or at `file.py:name`."""
    place, _, attribute = path.rpartition(":")
    try:
        found = getattr(import_file(Path(place)) if place.endswith(".py") else import_module(place), attribute)
    except (Exception, SystemExit) as e:  # importing runs the user's code, which may raise anything
        raise UserError(
            f"{what} {path!r} could not be imported ({type(e).__name__}: {' '.join(str(e).split())}): expected "
            "package.module:name, importable from the current directory or PYTHONPATH, or file.py:name"
        ) from e
    if not callable(found):
        raise UserError(f"{what} {path!r} is a {type(found).__name__}: expected a callable that takes a width")
    made: Factory = found
    return made


def import_module(name: str) -> ModuleType:
    look_in(os.getcwd())
    return importlib.import_module(name)


def import_file(file: Path) -> ModuleType:
    """Import a file as a module, once. The file can import its neighbours."""
    name = str(file.resolve())
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        look_in(str(file.resolve().parent))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def look_in(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
