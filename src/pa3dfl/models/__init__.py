"""Networks as ordinary factories with a width, and what can be inferred from them."""

from pa3dfl.core.options.names import MODELS as NAMES
from pa3dfl.models.model import Model
from pa3dfl.models.registry import factory_of

__all__ = ["NAMES", "Model", "factory_of"]
