"""TailorFL: each client keeps the channels that matter to its data, and shares more of them with similar clients.

Deng et al., "TailorFL: Dual-Personalized Federated Learning under System and Data Heterogeneity", SenSys 2022.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from pa3dfl.importance import correlation, learned, swapped, top
from pa3dfl.methods.base import Batch, Method, Update, option
from pa3dfl.models.channels import channels
from pa3dfl.rng import generator, key
from pa3dfl.slicing import Places, cut, merge
from pa3dfl.task import Client, Task
from pa3dfl.tree import Tree, put, take

MODEL, MASK, IMPORTANCE = "model/", "mask/", "importance/"
LAST, KNOWN = "clients/last", "clients/known"
import os

SCALE = os.environ.get("TSCALE", "all")
SEL = os.environ.get("TSEL", "now")


@dataclass(frozen=True)
class TailorFL(Method):
    name = "tailorfl"
    summary = "channels chosen by each client's data, shared more among similar clients"

    lam: float = option(0.5, "λ, weight of the importances' mean square", at_least=0)
    alpha: float = option(0.05, "α, swaps of a layer's channels a round, as a share of min(kept, dropped)", at_least=0)
    importance_steps: int = option(10, "steps of SGD on the importances", at_least=1)

    def init_server(self, task: Task) -> Tree:
        model = task.model.init(Fraction(1), key(task.seed, "model"))
        masks = {}
        for group in channels(task.model).layers if SEL != "now" else personal_groups(task):
            score = squared_weight(task, model, group)
            masks[group] = torch.stack([top(score, kept(task, c.width)[group]) for c in task.clients])
        n, last = len(task.clients), model[f"{task.model.layers[-1]}.weight"]
        return put(MODEL, model) | put(MASK, masks) | {LAST: torch.zeros(n, len(last)), KNOWN: torch.zeros(n)}

    def init_client(self, task: Task, client: Client) -> Tree:
        return importances(self, task, client)

    def download(self, task: Task, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        model = take(MODEL, server)
        return [rescaled(task, cut(model, places_of(task, server, c)), 1 / c.width) for c in clients]

    def begin(self, task: Task, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return down, put(IMPORTANCE, private)

    def finish(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return theta | fixed, take(IMPORTANCE, fixed)

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        places = [places_of(task, server, u.client) for u in updates]
        model = take(MODEL, server)
        trees = [rescaled(task, {k: u.tree[k] for k in model}, u.client.width) for u in updates]
        server |= put(MODEL, merge(model, trees, places, [float(u.n / u.client.width) for u in updates]))
        for u in updates:
            welcome(task, server, u)
        related = correlation(server[LAST])
        for group in personal_groups(task):
            size = channels(task.model).sizes[group]
            held = [kept(task, c.width)[group] for c in task.clients]
            limits = [int(self.alpha * min(k, size - k) + 1e-9) for k in held]
            server[MASK + group] = swapped(server[MASK + group], related, server[KNOWN], limits)
        return server


@lru_cache(maxsize=256)
def importances(method: TailorFL, task: Task, client: Client) -> Tree:
    g = generator(task.seed, "importance", client.id)
    rows, size = task.data.rows(client.id, "train"), task.local.batch
    batches = []
    if len(rows):
        n = method.importance_steps * size
        order = torch.cat([rows[torch.randperm(len(rows), generator=g)] for _ in range(-(-n // len(rows)))])[:n]
        crops = task.data.draw_crops(n, g)
        for at in range(0, n, size):
            c = None if crops is None else crops[at : at + size]
            batches.append(task.data.batch(order[at : at + size], c, task.dtype))
    model = task.model.init(Fraction(1), key(task.seed, "model"))
    frozen = {k: v.to(task.device, task.dtype) for k, v in model.items()}
    return learned(task.model, frozen, batches, method.lam, task.local.rate(1))


def personal_groups(task: Task) -> list[str]:
    order = task.model.layers
    return [g for g in channels(task.model).layers if order.index(g) >= len(order) // 2]


def kept(task: Task, width: Fraction) -> dict[str, int]:
    return channels(task.model).held(task.model, width)


def squared_weight(task: Task, model: Tree, group: str) -> Tensor:
    members = channels(task.model).layers[group]
    return torch.stack([model[f"{n}.weight"].flatten(1).square().sum(1) for n in members]).sum(0)


def welcome(task: Task, server: Tree, update: Update) -> None:
    i, known = update.client.id, server[KNOWN][update.client.id]
    for group in personal_groups(task):
        score = torch.stack([update.tree[IMPORTANCE + n].square() for n in channels(task.model).layers[group]]).sum(0)
        first = top(score, kept(task, update.client.width)[group])
        server[MASK + group][i] = torch.where(known > 0, server[MASK + group][i], first)
    server[LAST][i] = update.tree[IMPORTANCE + task.model.layers[-1]]
    server[KNOWN][i] = 1


def rescaled(task, tree: Tree, factor: Fraction) -> Tree:
    names = set(tree)
    if SCALE == "none":
        names = set()
    if SCALE == "layers":
        names = {f"{n}.{k}" for n in (*task.model.layers, task.model.head) for k in ("weight",)}
    if SCALE == "inner":
        names = {f"{n}.{k}" for n in (*task.model.layers[1:], task.model.head) for k in ("weight",)}
    return {k: v * float(factor) if k in names else v for k, v in tree.items()}


def places_of(task: Task, server: Tree, client: Client) -> Places:
    """Positions that a client holds in every parameter."""
    kinds, count = channels(task.model), kept(task, client.width)
    device = server[KNOWN].device
    held = {}
    for group in kinds.layers:
        if MASK + group in server:
            mask = server[MASK + group][client.id]
        else:
            mask = top(squared_weight(task, take(MODEL, server), group), count[group])
        # Not nonzero(): how many there are is known.
        held[group] = mask.argsort(descending=True, stable=True)[: count[group]]
    whole, places = task.model.shapes(Fraction(1)), {}
    for k, shape in task.model.shapes(client.width).items():
        scaled = [d for d, (n, full) in enumerate(zip(shape, whole[k], strict=True)) if n < full]
        indexed = max(scaled, default=-1) + 1
        sets = []
        for d in range(indexed):
            group = kinds.dims[k][d]
            index = held[group] if group else torch.arange(whole[k][d], device=device)
            each = whole[k][d] // kinds.sizes[group] if group else 1
            index = (index[:, None] * each + torch.arange(each, device=device)).flatten()
            sets.append(index.view(-1, *[1] * (indexed - 1 - d)))
        places[k] = tuple(sets)
    return places
