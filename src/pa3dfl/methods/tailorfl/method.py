"""TailorFL: each client keeps the channels important to its data, and shares more of them with similar clients.

Deng et al., "TailorFL: Dual-Personalized Federated Learning under System and Data Heterogeneity", SenSys 2022.
A client learns one importance per channel from a few batches, with the full network frozen at its initial
parameters. It keeps a share p of every layer: the first half of the layers by squared weight, equal for all clients and
fixed, the others by squared importance; the head keeps all outputs. Submodels are sent divided by p, multiplied by p
on return, and averaged entry by entry with weights n/p; an entry that no client holds keeps its value. After each round
the server swaps some channels of the later layers, so that two clients overlap in proportion to the correlation of
their importances in the last layer. With full width for all clients this is FedAvg.

Choices:

- In the paper, all clients measure importances in round 1. Here each client measures them by itself, because the
  frozen network follows from the seed. The server learns them from the client's first update, because only a cohort
  takes part in a round. Until then the server chooses all layers of that client by squared weight, tests it with this
  choice, and leaves it out of swaps.
- Layers whose outputs are added hold the same channels, chosen by the sum of the layers' scores.
- The code of the Pa3dFL paper's framework changes all clients' channels at once, so that two similar clients merely
  exchange theirs. Here clients change one after another.

Options, where authors, paper and that framework differ:

- `divide`. The framework divides all parameters by p (`all`), also biases, and also the first layer, whose inputs are
  never pruned. `inputs` divides by p only weights whose inputs are pruned. The default, `root`, divides those by √p:
  at the start weights are independent, and a sum over p·S inputs is √p times a sum over S. On the CNN for Fashion-MNIST
  the first loss at p = 1/16 is then 3.0, as at p = 1 (3.5); with `inputs` it is 405, with `all` 6474.
- `min_swaps`, 1 as in the framework. The limit α·min(kept, dropped) is rounded down. With 0, a layer with fewer than
  1/α channels kept or dropped would never change.
- `rerank`, off. The framework chooses the early layers again in each round, by the current weights. In the algorithm,
  all layers are chosen in round 1, and afterwards only swaps change channels, within a limit. A changed channel in an
  early layer also changes the inputs of the client's later layers, without a limit.

The tested model is the client's submodel of the current global weights, divided as in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from pa3dfl.core.randomness import generator
from pa3dfl.core.tree import Tree, put, take
from pa3dfl.methods.base import Batch, Method, Update, option
from pa3dfl.methods.common.slicing import Places, chosen_places, cut, merge
from pa3dfl.methods.problem import Client, Problem, Task
from pa3dfl.methods.tailorfl.importance import correlation, learned, swapped, top
from pa3dfl.models.channels import channels

MODEL, MASK, IMPORTANCE = "model/", "mask/", "importance/"
LAST, KNOWN = "clients/last", "clients/known"
DIVISIONS = ("root", "inputs", "all")


@dataclass(frozen=True)
class TailorFL(Method):
    name = "tailorfl"
    summary = "channels chosen by each client's data, shared more among similar clients"

    lam: float = option(0.5, "λ, weight of the mean square of the importances", at_least=0)
    alpha: float = option(0.05, "α, channels of a layer swapped a round, as a share of min(kept, dropped)", at_least=0)
    min_swaps: int = option(1, "swaps of a layer that α may not go below", at_least=0)
    divide: str = option(
        "root", "what is sent is divided: by √p or by p where inputs are pruned, or all by p", choices=DIVISIONS
    )
    rerank: bool = option(False, "choose early layers anew each round by the current weights, not once at the start")
    importance_steps: int = option(10, "steps of SGD on the importances", at_least=1)

    def init_server(self, task: Task) -> Tree:
        model = task.initial()
        masks = by_weight(task, model, list(channels(task.model).layers))
        n, last = len(task.clients), len(model[f"{task.model.layers[-1]}.weight"])
        return put(MODEL, model) | put(MASK, masks) | {LAST: torch.zeros(n, last), KNOWN: torch.zeros(n)}

    def extend(self, task: Task, server: Tree) -> Tree:
        for k, fresh in put(MASK, take(MASK, self.init_server(task))).items():
            fresh = fresh.to(server[k])
            mask = torch.cat([server[k], fresh[len(server[k]) :]])
            server[k] = torch.where((mask.sum(1) == fresh.sum(1))[:, None], mask, fresh)
        more = len(task.clients) - len(server[KNOWN])
        return server | {
            k: torch.cat([server[k], server[k].new_zeros(more, *server[k].shape[1:])]) for k in (LAST, KNOWN)
        }

    def init_client(self, task: Task, client: Client) -> Tree:
        return importances(self, task, client)

    def download(self, problem: Problem, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        model = take(MODEL, server)
        return [scaled(self.factors(problem, c.width), cut(model, places_of(problem, server, c))) for c in clients]

    def begin(self, problem: Problem, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return down, put(IMPORTANCE, private)

    def finish(self, problem: Problem, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return theta | fixed, take(IMPORTANCE, fixed)

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        self._average(task, server, updates)
        for u in updates:
            if not server[KNOWN][u.client.id]:
                self._introduce(task, server, u)
        self._swap(task, server)
        if self.rerank:
            early = [g for g in channels(task.model).layers if g not in personal_groups(task)]
            server |= put(MASK, by_weight(task, take(MODEL, server), early))
        return server

    def welcome(self, task: Task, server: Tree, client: Client, update: Update | None) -> Tree:
        """The client's channels, by its own importances once they are known. The others' do not change."""
        if update is not None and server[KNOWN][client.id]:
            return {k: server[k] for k in server if not k.startswith(MODEL)}
        own = {k: v.clone() for k, v in server.items() if not k.startswith(MODEL)}
        if update is not None:
            self._introduce(task, own, update)
        return own

    def _average(self, task: Task, server: Tree, updates: list[Update]) -> None:
        """Merge the returned submodels into the global model."""
        model, places = take(MODEL, server), [places_of(task, server, u.client) for u in updates]
        trees = []
        for u in updates:
            back = {k: 1 / f for k, f in self.factors(task, u.client.width).items()}
            trees.append(scaled(back, {k: u.tree[k] for k in model}))
        server |= put(MODEL, merge(model, trees, places, [float(u.n / u.client.width) for u in updates]))

    def _introduce(self, task: Task, server: Tree, first: Update) -> None:
        """Note the importances in a client's first update, and choose the channels of its later layers by them."""
        client = first.client
        server[KNOWN][client.id] = 1
        server[LAST][client.id] = first.tree[IMPORTANCE + task.model.layers[-1]]
        for group in personal_groups(task):
            members = channels(task.model).layers[group]
            score = by_channel(task, group, torch.stack([first.tree[IMPORTANCE + n].square() for n in members]).sum(0))
            server[MASK + group][client.id] = top(score, kept(task, client)[group])

    def _swap(self, task: Task, server: Tree) -> None:
        """Make similar clients share more channels of the later layers."""
        related = correlation(server[LAST])
        for group in personal_groups(task):
            size, counts = channels(task.model).sizes[group], [kept(task, c)[group] for c in task.clients]
            possible = [min(k, size - k) for k in counts]
            # The rounding error of a float product must not cost a swap.
            limits = [min(n, max(self.min_swaps, int(self.alpha * n + 1e-9))) for n in possible]
            server[MASK + group] = swapped(server[MASK + group], related, server[KNOWN], limits)

    def factors(self, problem: Problem, width: Fraction) -> dict[str, float]:
        """Factors on the entries of a submodel that is sent."""
        full, own = problem.model.shapes(Fraction(1)), problem.model.shapes(width)
        if self.divide == "all":
            return dict.fromkeys(full, float(1 / width))
        layers = [f"{n}.weight" for n in (*problem.model.layers, problem.model.head)]
        power = 0.5 if self.divide == "root" else 1.0
        return {k: float(1 / width) ** power for k in layers if own[k][1] < full[k][1]}


# Cached, because every test of a client that was never trained needs them again.
@lru_cache(maxsize=256)
def importances(method: TailorFL, task: Task, client: Client) -> Tree:
    frozen = {k: v.to(task.device, task.dtype) for k, v in task.initial().items()}
    return learned(task.model, frozen, batches(method, task, client), method.lam, task.local.rate(1))


def batches(method: TailorFL, task: Task, client: Client) -> list[Batch]:
    """As many full batches of the client's training data as there are steps; each pass has a new random order."""
    g, rows = generator(task.seed, "importance", client.id), task.data.rows(client.id, "train")
    if not len(rows):  # a task without data, which serves to count
        return []
    n = method.importance_steps * task.local.batch
    orders = [rows[torch.randperm(len(rows), generator=g)] for _ in range(0, n, len(rows))]
    steps = torch.cat(orders)[:n].split(task.local.batch)
    crops = [task.data.draw_crops(task.local.batch, g) for _ in steps]
    return [task.data.batch(rows, crop, task.dtype) for rows, crop in zip(steps, crops, strict=True)]


def personal_groups(problem: Problem) -> list[str]:
    """The groups whose first layer is in the second half of the layers: there clients hold different channels."""
    late = problem.model.layers[len(problem.model.layers) // 2 :]
    return [g for g in channels(problem.model).layers if g in late]


def kept(problem: Problem, client: Client) -> dict[str, int]:
    """The number of channels of each group that a client holds."""
    shapes, known = problem.model.shapes(client.width), channels(problem.model)
    return {g: shapes[f"{g}.weight"][g in problem.model.tables] // known.units[g] for g in known.layers}


def places_of(problem: Problem, server: Tree, client: Client) -> Places:
    """The entries of the global model that a client holds."""
    # Not nonzero(): the number of channels is known, and tensors without contents do not support it.
    held = {}
    for group, k in kept(problem, client).items():
        held[group] = server[MASK + group][client.id].argsort(descending=True, stable=True)[:k]
    return chosen_places(problem.model, client.width, held)


def by_weight(task: Task, model: Tree, groups: Sequence[str]) -> Tree:
    """Masks of all clients that keep the channels with the largest squared weights."""
    masks = {}
    for group in groups:
        members = channels(task.model).layers[group]
        rows = [model[f"{n}.weight"].T if n in task.model.tables else model[f"{n}.weight"] for n in members]
        score = by_channel(task, group, torch.stack([w.flatten(1).square().sum(1) for w in rows]).sum(0))
        masks[group] = torch.stack([top(score, kept(task, c)[group]) for c in task.clients])
    return masks


def by_channel(problem: Problem, group: str, scores: Tensor) -> Tensor:
    """Scores of outputs that belong together, summed."""
    return scores.view(-1, channels(problem.model).units[group]).sum(1)


def scaled(factors: dict[str, float], tree: Tree) -> Tree:
    """The tree with some of its entries multiplied by factors."""
    return {k: v * factors.get(k, 1.0) for k, v in tree.items()}
