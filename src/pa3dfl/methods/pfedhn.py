"""pFedHN with personal classifiers: a hyper-network makes each client's encoder; each client keeps its own head.

Shamsian et al., "Personalized Federated Learning using Hypernetworks", ICML 2021. An embedding of each client
passes an MLP, and one linear output per parameter tensor makes the encoder from it. A client trains the
received encoder together with its own head. The hyper-network then takes a step on ½‖generated − trained‖², summed over
the encoder's entries and averaged over clients.

The default sizes are the paper's [5, 100, 2]: `layers` counts the hidden layers after the first, as in the
authors' code. They use momentum and one client per step; here a step is plain SGD on a round's clients, at a
rate of its own that is not decayed. The outputs' biases start as the model's own initial parameters (also those of
norms), so that clients start close together. pFedHN ignores capacities: all clients train the width that the weakest
client can afford. The authors test the generated encoder below the client's own head, without training:
`--tested received`. A newcomer's embedding is learned below the fixed hyper-network, as in the paper.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from pa3dfl.core.tree import Tree
from pa3dfl.methods.base import Method, Update, option
from pa3dfl.methods.common import newcomer
from pa3dfl.methods.common.heads import split_head
from pa3dfl.methods.common.hypernetwork import HyperNetwork, Output
from pa3dfl.methods.common.widths import narrowest
from pa3dfl.methods.problem import Client, Problem, Task
from pa3dfl.models import initialisation

DECODER = "decoder."
# Makes clients' weights differ at the start by about a quarter of the deviation of the model's initialisation rule.
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
        return narrowest(affordable)

    def init_server(self, task: Task) -> Tree:
        width = task.clients[0].width
        encoder, _ = split_head(task.model, task.initial(width))
        tree = hypernetwork(self, task, width).init(len(task.clients), task.seed, task.newcomers)
        return tree | {f"{DECODER}{k}.bias": v.flatten() for k, v in encoder.items()}

    def init_client(self, task: Task, client: Client) -> Tree:
        _, head = split_head(task.model, task.initial(client.width))
        return head

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        network = hypernetwork(self, problem, clients[0].width)
        shapes = {k: output.shape for k, output in network.outputs.items()}
        return network.generate(server, [c.id for c in clients], [shapes] * len(clients))

    def begin(self, problem: Problem, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return down | private, {}

    def finish(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return split_head(problem.model, theta)

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        network = hypernetwork(self, task, updates[0].client.width)
        network.update(server, [u.client.id for u in updates], [u.tree for u in updates])
        return server

    def welcome(self, task: Task, server: Tree, client: Client, update: Update | None) -> Tree:
        if update is None:
            return newcomer.arrive(server)
        return newcomer.settle(hypernetwork(self, task, client.width), server, update.tree)

    def history(self, task: Task, server: Tree, clients: Sequence[int]) -> Tree:
        return hypernetwork(self, task, task.clients[0].width).history(server, clients)


@lru_cache(maxsize=16)
def hypernetwork(method: PFedHN, problem: Problem, width: Fraction) -> HyperNetwork:
    """Generates the encoder of this width."""
    encoder, _ = split_head(problem.model, problem.model.shapes(width))
    outputs = {}
    for name, shape in encoder.items():
        # The deviation decides only how much clients differ at the start; biases and norms start equal.
        std = initialisation.deviation(problem.model.rule, math.prod(shape[1:])) if len(shape) > 1 else 0.0
        outputs[name] = Output(shape, SPREAD * std)
    return HyperNetwork(
        outputs, method.embedding, method.hidden, method.layers + 1, tau=1.0, tau_min=0.0, rate=method.hn_lr,
        encoder_rate=method.hn_lr, clip_norm=method.hn_clip, attention=False,
    )  # fmt: skip
