"""FedRolex: submodels roll through the full model, so that every channel is trained equally often.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS
2022. The server keeps the full model. In round t a client of width p trains, in every layer of T channels,
the p·T channels from t − 1 on, modulo T. This window moves by one channel per round and starts at the same channel for
all clients. Channels stay in ascending order; a layer's inputs are the outputs that feed it.

Each entry is averaged over the clients that hold it, weighted by data sizes; an entry that no client holds keeps its
value. With full width for all clients this is FedAvg. HeteroFL's Scaler and masked loss, which the authors' code
inherits, do not belong to the paper's algorithm and are left out. The tested model is the client's slice of the global
model, in the window of the last round: a device with capacity for width p can neither train nor run more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from pa3dfl.core.tree import Tree
from pa3dfl.methods.base import Method, Update
from pa3dfl.methods.common.slicing import Places, cut, merge, rolling_places
from pa3dfl.methods.problem import Client, Problem, Task


@dataclass(frozen=True)
class FedRolex(Method):
    name = "fedrolex"
    summary = "a window of channels that rolls by one each round, entry-wise mean"

    def init_server(self, task: Task) -> Tree:
        return task.initial()

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        places = places_of(problem, server, clients, rnd)
        return [cut(server, places[c.width]) for c in clients]

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        by_width = places_of(task, server, [u.client for u in updates], rnd)
        places = [by_width[u.client.width] for u in updates]
        return merge(server, [u.tree for u in updates], places, [u.n for u in updates])


def places_of(problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> dict[Fraction, Places]:
    """For each width, the entries that clients hold in a round; indices are on the server's device."""
    device = next(iter(server.values())).device
    return {w: rolling_places(problem.model, w, rnd - 1, device) for w in {c.width for c in clients}}
