"""pFedHN with personal classifiers: a hyper-network makes each client's encoder, its head stays with it.

Shamsian et al., "Personalized Federated Learning using Hypernetworks", ICML 2021. An embedding of each client
passes an MLP, and one linear output per parameter tensor makes the encoder from it. A client trains what it
received together with its own head; the hyper-network follows the trained encoders by the gradient of
½‖generated − trained‖², summed over entries and averaged over clients.

The default sizes are the paper's [5, 100, 2]: `layers` counts the hidden layers after the first, as in the
authors' code. They use momentum and one client per step; here a step is plain SGD on a round's clients, at a
rate of its own that is not decayed. The outputs' biases start as the model's own initial parameters (which
suits norms too), so that clients start close together. It does not know capacities: everybody trains the
width that the weakest client affords. The authors test the encoder as it is generated now under the client's
own head, without training: `--tested received`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch

from pa3dfl.core.rng import key
from pa3dfl.core.tree import Tree
from pa3dfl.methods.base import Method, Update, option
from pa3dfl.methods.common.hypernetwork import HyperNetwork, Output
from pa3dfl.methods.task import Client, Task
from pa3dfl.models import start

DECODER = "decoder."
# With it, clients' weights differ at the start by about a quarter of the deviation that the model's rule gives them.
SPREAD = 0.17


@dataclass(frozen=True)
class PFedHN(Method):
    name = "pfedhn"
    summary = "encoders from a hyper-network over client embeddings, own heads"

    embedding: int = option(5, "size of a client's embedding", at_least=1)
    hidden: int = option(100, "hidden size of the hyper-network", at_least=1)
    layers: int = option(2, "hidden layers of the hyper-network", at_least=1)
    hn_lr: float = option(1e-2, "step size of the hyper-network; not decayed", above=0)
    hn_clip: float = option(50.0, "largest norm of the hyper-network's gradient; 0 for no limit", at_least=0)

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        return [min(affordable)] * len(affordable)

    def init_server(self, task: Task) -> Tree:
        tree = hypernetwork(self, task).init(len(task.clients), task.seed)
        start = fresh(task)
        return tree | {f"{DECODER}{k}.bias": start[k].flatten() for k in encoder_shapes(self, task)}

    def init_client(self, task: Task, client: Client) -> Tree:
        return {k: v for k, v in fresh(task).items() if self.is_head(task, k)}

    def download(self, task: Task, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        shapes = encoder_shapes(self, task)
        return hypernetwork(self, task).generate(server, [c.id for c in clients], [shapes] * len(clients))

    def begin(self, task: Task, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return down | private, {}

    def finish(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        head = {k: v for k, v in theta.items() if self.is_head(task, k)}
        return {k: v for k, v in theta.items() if k not in head}, head

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        hypernetwork(self, task).update(server, [u.client.id for u in updates], [u.tree for u in updates])
        return server

    def history(self, task: Task, server: Tree, clients: Sequence[int]) -> Tree:
        return hypernetwork(self, task).history(server, clients)


def fresh(task: Task) -> Tree:
    return task.model.init(task.clients[0].width, key(task.seed, "model"))


@lru_cache(maxsize=16)
def encoder_shapes(method: PFedHN, task: Task) -> dict[str, tuple[int, ...]]:
    shapes = task.model.shapes(task.clients[0].width)
    return {k: s for k, s in shapes.items() if not method.is_head(task, k)}


@lru_cache(maxsize=16)
def hypernetwork(method: PFedHN, task: Task) -> HyperNetwork:
    # Only how much clients differ at the start; biases and norms start equal.
    rule = task.model.rule
    outputs = {
        k: Output(shape, SPREAD * start.deviation(rule, torch.Size(shape[1:]).numel()) if len(shape) > 1 else 0.0)
        for k, shape in encoder_shapes(method, task).items()
    }
    return HyperNetwork(
        outputs,
        method.embedding,
        method.hidden,
        method.layers + 1,
        tau=1.0,
        tau_min=0.0,
        rate=method.hn_lr,
        encoder_rate=method.hn_lr,
        clip_norm=method.hn_clip,
        attention=False,
    )
