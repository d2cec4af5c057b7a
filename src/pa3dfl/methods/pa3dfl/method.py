"""Pa3dFL: pruning and aggregation after decomposition.

Wang et al., "Selective Knowledge Sharing for Personalized Federated Learning Under Capacity Heterogeneity",
2024. Every layer but the head is decomposed into general parameters θ_u, which all clients hold in full and
average, and personal ones θ_v, which a hyper-network generates from client embeddings and prunes to the
client's width. A random global head stays frozen; a local head comes from the hyper-network. docs/method.md lists the
decisions where the paper is silent or contradicts itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.tree import Tree, leading, lerp, put, take
from pa3dfl.methods.base import Batch, Method, Update, option
from pa3dfl.methods.common import newcomer
from pa3dfl.methods.common.contraction import ORDERS
from pa3dfl.methods.common.hypernetwork import HyperNetwork, Output
from pa3dfl.methods.common.widths import multiples
from pa3dfl.methods.pa3dfl import general
from pa3dfl.methods.pa3dfl.decomposition import R2_RULES, Layout, off_diagonal, take_apart
from pa3dfl.methods.pa3dfl.general import PLAIN, U
from pa3dfl.methods.problem import Client, Problem, Task
from pa3dfl.models import initialisation
from pa3dfl.models.channels import feature_norms

V, HN, HEAD = "theta_v/", "hn/", "head."
KEPT = {"none": (), "head": (V + HEAD,), "personal": (V,), "all": (V, U, PLAIN)}
"""For each value of the option `keep`, the prefixes of the entries that a client keeps."""


@dataclass(frozen=True)
class Pa3dFL(Method):
    name = "pa3dfl"
    summary = "general parameters averaged, personal ones from a hyper-network, pruned to each width"
    full_features = True

    lam: float = option(1e-3, "λ, weight of the orthogonality term of convolutions", at_least=0)
    embedding: int = option(64, "d, size of a client's embedding", at_least=1)
    hidden: int = option(64, "h, hidden size of the hyper-network's encoder", at_least=1)
    depth: int = option(3, "layers of the hyper-network's encoder", at_least=1)
    hn_lr: float = option(1.0, "γ, step size of the hyper-network's decoders; not decayed", above=0)
    hn_encoder_lr: float = option(0.1, "step size of its encoder, embeddings and temperatures", above=0)
    hn_clip: float = option(50.0, "largest norm of the hyper-network's gradient; 0 for no limit", at_least=0)
    tau: float = option(0.2, "attention temperature of every layer at the start", above=0)
    tau_min: float = option(0.1, "floor of the temperatures: below about 0.1 clients stop sharing", above=0)
    head_scale: float = option(0.0, "s: rows of the frozen head in ±s/√features; 0: √3·ln(classes)", at_least=0)
    local_weight: float = option(0.0, "weight of the local head's loss; 0: min(1, 192/features)", at_least=0)
    last_gain: float = option(0.0, "factor on the features at the start; 0: 1/ln(classes)", at_least=0)
    r2_rule: str = option("max", "R2 of convolutions: max(S,T,k²) or the printed rule", choices=R2_RULES)
    r2_scale: float = option(1.0, "factor on R2 of convolutions", above=0)
    order: str = option("auto", "decomposed layers: recover weights first, by factors, or the cheaper", choices=ORDERS)
    keep: str = option(
        "none", "what a client keeps of its last training for tests without training", choices=tuple(KEPT)
    )
    line_search: int = option(11, "values of α tried between received and locally trained model", at_least=2)

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        # θ_v is pruned by whole blocks of R1 = T·p_min channels.
        return multiples(affordable, p_min)

    def decompose(self, problem: Problem) -> Layout:
        return take_apart(problem.model, problem.p_min, self.r2_rule, self.r2_scale)

    def init_general(self, problem: Problem) -> Tree:
        gains = dict.fromkeys(feature_norms(problem.model), feature_gain(self, problem))
        return general.fresh(layout(self, problem), problem.seed, gains)

    def init_server(self, task: Task) -> Tree:
        network = hypernetwork(self, task)
        return self.init_general(task) | put(HN, network.init(len(task.clients), task.seed, task.newcomers))

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        shapes = [layout(self, problem).personal_shapes(c.width, HEAD) for c in clients]
        personal = hypernetwork(self, problem).generate(take(HN, server), [c.id for c in clients], shapes)
        return [
            general.part(problem.model, server, c.width) | put(V, v) for c, v in zip(clients, personal, strict=True)
        ]

    def begin(self, problem: Problem, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return down, head_at(self, problem, client.width)

    def loss(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, draws: Tree) -> Tensor:
        x, y = batch
        features = self.features(problem, width, theta, x)
        local = take(V + HEAD, theta)
        global_loss = F.cross_entropy(F.linear(features, fixed["weight"], fixed.get("bias")), y)
        local_loss = F.cross_entropy(F.linear(features.detach(), local["weight"], local.get("bias")), y)
        kernels = [theta[U + layer.name] for layer in layout(self, problem).layers if layer.kernel]
        overlap = self.lam * off_diagonal(*kernels) if self.lam and kernels else 0
        return global_loss + general.local_weight(self.local_weight, features.shape[1]) * local_loss + overlap

    def finish(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return theta, {k: v for k, v in theta.items() if k.startswith(KEPT[self.keep])}

    def untrained(self, problem: Problem, start: Tree, private: Tree) -> Tree:
        return start | private

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        trained = [take(V, u.tree) for u in updates]
        hypernetwork(self, task).update(take(HN, server), [u.client.id for u in updates], trained)
        return self.average(task, server, updates)

    def welcome(self, task: Task, server: Tree, client: Client, update: Update | None) -> Tree:
        own = take(HN, server)
        if update is None:
            return put(HN, newcomer.arrive(own))
        return put(HN, newcomer.settle(hypernetwork(self, task), own, take(V, update.tree)))

    def history(self, task: Task, server: Tree, clients: Sequence[int]) -> Tree:
        own = take(HN, server)
        return hypernetwork(self, task).history(own, clients) if own else {}

    def average(self, problem: Problem, server: Tree, updates: list[Update]) -> Tree:
        trees, widths = [u.tree for u in updates], [u.client.width for u in updates]
        return server | general.average(problem.model, server, trees, widths)

    def weights(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        """The parameters of the plain encoder."""
        return layout(self, problem).weights(take(U, theta), take(V, theta)) | take(PLAIN, theta)

    def features(self, problem: Problem, width: Fraction, theta: Tree, x: Tensor) -> Tensor:
        """The encoder's outputs for a batch; `order` says how decomposed layers are applied."""
        decomposed = layout(self, problem).weights(take(U, theta), take(V, theta), self.order)
        return problem.model.features(decomposed | take(PLAIN, theta), x, width)

    def personal(
        self, problem: Problem, width: Fraction, received: Tree, trained: Tree, fixed: Tree
    ) -> dict[float, Tree]:
        """From M0 (the received encoder with the global head) to M1 (the trained encoder with the local head)."""
        head = problem.model.head + "."
        m0 = self.weights(problem, width, received, fixed) | put(head, fixed)
        m1 = self.weights(problem, width, trained, fixed) | put(head, take(V + HEAD, trained))
        steps = self.line_search - 1
        return {i / steps: lerp(m0, m1, i / steps) for i in range(steps + 1)}


@lru_cache(maxsize=16)
def layout(method: Pa3dFL, problem: Problem) -> Layout:
    return method.decompose(problem)


def feature_gain(method: Pa3dFL, problem: Problem) -> float:
    """The frozen head has large weights; smaller features give initial logits of order one and a stable start."""
    return method.last_gain or 1 / math.log(problem.model.classes)


@lru_cache(maxsize=16)
def hypernetwork(m: Pa3dFL, problem: Problem) -> HyperNetwork:
    outputs, rule = {}, problem.model.rule
    for layer in layout(m, problem).layers:
        # θ_u has variance 1/R2, so that the recovered weight has the deviation of θ_v.
        std = initialisation.deviation(rule, layer.taps * layer.inputs, layer.name in problem.model.without_relu)
        if layer.name == problem.model.layers[-1] and not feature_norms(problem.model):
            std *= feature_gain(m, problem)
        outputs[layer.name] = Output(layer.v_shape(), std)
    head = layout(m, problem).head
    features = head["weight"][1]
    outputs[HEAD + "weight"] = Output(head["weight"], initialisation.deviation(rule, features, without_relu=True))
    if "bias" in head:
        outputs[HEAD + "bias"] = Output(head["bias"], initialisation.bias_deviation(rule, features))
    return HyperNetwork(outputs, m.embedding, m.hidden, m.depth, m.tau, m.tau_min, m.hn_lr, m.hn_encoder_lr, m.hn_clip)


@lru_cache(maxsize=16)
def global_head(method: Pa3dFL, problem: Problem) -> Tree:
    """The frozen head: a function of the seed, so that each client makes it by itself and nobody sends it."""
    head = general.random_head(layout(method, problem).head, method.head_scale, problem.seed)
    return {k: v.to(problem.device, problem.dtype) for k, v in head.items()}


def head_at(method: Pa3dFL, problem: Problem, width: Fraction) -> Tree:
    """The frozen head's columns for a client's features: all, unless the last encoder layer must be narrow."""
    shapes, head = layout(method, problem).head_shapes(width), global_head(method, problem)
    return {k: leading(v, shapes[k]) for k, v in head.items()}
