"""What tests of TailorFL share."""

from pa3dfl.core.tree import Tree
from pa3dfl.methods.problem import Client
from pa3dfl.methods.tailorfl.method import MASK, TailorFL

METHOD = TailorFL(importance_steps=3)
LAYERS = ("conv1", "conv2", "fc1", "fc2")


def kept(server: Tree, layer: str, client: Client) -> list[int]:
    """The channels of a layer that a client holds."""
    places: list[int] = server[MASK + layer][client.id].nonzero().flatten().tolist()
    return places
