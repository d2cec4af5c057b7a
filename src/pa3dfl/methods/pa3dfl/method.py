"""Pa3dFL: pruning and aggregation after decomposition.

Wang et al., "Selective Knowledge Sharing for Personalized Federated Learning Under Capacity Heterogeneity",
2024. Every layer but the head is decomposed into general parameters θ_u, which all clients hold in full and
average, and personal ones θ_v, which a hyper-network generates from client embeddings and prunes to the
client's width. A random global head stays frozen; a local head comes from the hyper-network.
Where the paper is silent or contradicts itself, docs/method.md says what is done here and why.
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
from pa3dfl.methods.common.contraction import ORDERS
from pa3dfl.methods.common.hypernetwork import HyperNetwork, Output
from pa3dfl.methods.pa3dfl import general
from pa3dfl.methods.pa3dfl.decomposition import R2_RULES, Layout, off_diagonal, take_apart
from pa3dfl.methods.pa3dfl.general import PLAIN, U
from pa3dfl.methods.task import Client, Task
from pa3dfl.models import start
from pa3dfl.models.channels import feature_norms

V, HN, HEAD = "theta_v/", "hn/", "head."


@dataclass(frozen=True)
class Pa3dFL(Method):
    name = "pa3dfl"
    summary = "general parameters averaged, personal ones from a hyper-network, pruned to each width"
    full_features = True
    charged_order = "recover"

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
    line_search: int = option(11, "values of α tried between received and locally trained model", at_least=2)

    def widths(self, affordable: Sequence[Fraction], p_min: Fraction) -> list[Fraction]:
        # θ_v is pruned by whole blocks of R1 = T·p_min channels.
        return [p // p_min * p_min for p in affordable]

    def decompose(self, task: Task) -> Layout:
        return take_apart(task.model, task.p_min, self.r2_rule, self.r2_scale)

    def init_general(self, task: Task) -> Tree:
        gains = dict.fromkeys(feature_norms(task.model), feature_gain(self, task))
        return general.fresh(layout(self, task), task.seed, gains)

    def init_server(self, task: Task) -> Tree:
        return self.init_general(task) | put(HN, hypernetwork(self, task).init(len(task.clients), task.seed))

    def download(self, task: Task, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        shapes = [layout(self, task).personal_shapes(c.width, HEAD) for c in clients]
        personal = hypernetwork(self, task).generate(take(HN, server), [c.id for c in clients], shapes)
        return [general.part(task.model, server, c.width) | put(V, v) for c, v in zip(clients, personal, strict=True)]

    def begin(self, task: Task, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return down, head_at(self, task, client.width)

    def loss(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, batch: Batch, noise: Tree) -> Tensor:
        x, y = batch
        features = self.encoder_forward(task, width, theta, fixed, x)
        local = take(V + HEAD, theta)
        global_loss = F.cross_entropy(F.linear(features, fixed["weight"], fixed.get("bias")), y)
        local_loss = F.cross_entropy(F.linear(features.detach(), local["weight"], local.get("bias")), y)
        kernels = [theta[U + layer.name] for layer in layout(self, task).layers if layer.kernel]
        overlap = self.lam * off_diagonal(*kernels) if self.lam and kernels else 0
        return global_loss + general.local_weight(self.local_weight, features.shape[1]) * local_loss + overlap

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        trained = [take(V, u.tree) for u in updates]
        hypernetwork(self, task).update(take(HN, server), [u.client.id for u in updates], trained)
        return self.average(task, server, updates)

    def average(self, task: Task, server: Tree, updates: list[Update]) -> Tree:
        trees, widths = [u.tree for u in updates], [u.client.width for u in updates]
        return server | general.average(task.model, server, trees, widths)

    def weights(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> Tree:
        """Parameters of the plain encoder."""
        return layout(self, task).weights(take(U, theta), take(V, theta)) | take(PLAIN, theta)

    def encoder_forward(self, task: Task, width: Fraction, theta: Tree, fixed: Tree, x: Tensor) -> Tensor:
        decomposed = layout(self, task).weights(take(U, theta), take(V, theta), self.order)
        return task.model.features(decomposed | take(PLAIN, theta), x, width)

    def is_head(self, task: Task, name: str) -> bool:
        return name.startswith(V + HEAD)

    def personal(self, task: Task, width: Fraction, received: Tree, trained: Tree, fixed: Tree) -> dict[float, Tree]:
        """From M0, as received with the global head, to M1, as trained with the local head."""
        head = task.model.head + "."
        m0 = self.weights(task, width, received, fixed) | put(head, fixed)
        m1 = self.weights(task, width, trained, fixed) | put(head, take(V + HEAD, trained))
        steps = self.line_search - 1
        return {i / steps: lerp(m0, m1, i / steps) for i in range(steps + 1)}


@lru_cache(maxsize=16)
def layout(method: Pa3dFL, task: Task) -> Layout:
    return method.decompose(task)


def feature_gain(method: Pa3dFL, task: Task) -> float:
    """The frozen head is large: smaller features give it first logits of order one, and a calm start."""
    return method.last_gain or 1 / math.log(task.model.classes)


@lru_cache(maxsize=16)
def hypernetwork(m: Pa3dFL, task: Task) -> HyperNetwork:
    outputs, rule = {}, task.model.rule
    for layer in layout(m, task).layers:
        # θ_u has variance 1/R2, so that the recovered weight has the deviation of θ_v.
        std = start.deviation(rule, layer.taps * layer.inputs, layer.name in task.model.calm)
        if layer.name == task.model.layers[-1] and not feature_norms(task.model):
            std *= feature_gain(m, task)
        outputs[layer.name] = Output(layer.v_shape(), std)
    head = layout(m, task).head
    features = head["weight"][1]
    outputs[HEAD + "weight"] = Output(head["weight"], start.deviation(rule, features, calm=True))
    if "bias" in head:
        outputs[HEAD + "bias"] = Output(head["bias"], start.bias_deviation(rule, features))
    return HyperNetwork(outputs, m.embedding, m.hidden, m.depth, m.tau, m.tau_min, m.hn_lr, m.hn_encoder_lr, m.hn_clip)


@lru_cache(maxsize=16)
def global_head(method: Pa3dFL, task: Task) -> Tree:
    """The frozen head, a function of the seed: every client can make it, so it is never sent."""
    head = general.random_head(layout(method, task).head, method.head_scale, task.seed)
    return {k: v.to(task.device, task.dtype) for k, v in head.items()}


def head_at(method: Pa3dFL, task: Task, width: Fraction) -> Tree:
    """As much of it as a client's features meet: all, unless the last encoder layer cannot keep its full output."""
    shapes, head = layout(method, task).head_shapes(width), global_head(method, task)
    return {k: leading(v, shapes[k]) for k, v in head.items()}
