"""TailorFL: each client keeps the channels that matter to its data, and shares more of them with similar clients.

Deng et al., "TailorFL: Dual-Personalized Federated Learning under System and Data Heterogeneity", SenSys 2022.
With the full network frozen at its start, a client learns one importance per channel from a few batches. It
keeps its share p of every layer: the first half of the layers by squared weight, the same for all and fixed,
the others by squared importance; the head's outputs are full. Submodels are sent divided by p, multiplied by p
on return, and averaged with weights n/p entry by entry; what nobody holds keeps its value. After each round
the server swaps some channels of the later layers, so that two clients overlap in proportion to their
correlation: the cosine of their centred importances of the last layer. Equal full widths give FedAvg.

Choices. The paper has all clients measure importances in round 1. Here a client measures them by itself: the
frozen network follows from the seed. The server learns them with the client's first update, because only a
cohort takes part in a round; until then all layers of that client are chosen by squared weight, it stays out
of swaps, and it is tested so. Layers whose outputs are added hold the same channels, by the sum of their
scores. The code of the Pa3dFL paper's framework moves all clients' channels at once, by which two that are alike
merely exchange theirs; here one client follows another.

Options, where authors, paper and that framework differ:
- `divide`. The framework divides all parameters by p (`all`), also biases, and the first layer, whose inputs are
  never pruned. `inputs` divides by p only weights whose inputs are pruned. The default, `root`, divides those by √p:
  at the start weights are independent, and a sum over p·S inputs is √p times one over S. On the CNN for Fashion-MNIST
  the first loss at p = 1/16 is then 3.0, as at p = 1 (3.5); with `inputs` it is 405, with `all` 6474.
- `min_swaps`, 1 as in the framework. The limit α·min(kept, dropped) is rounded down, and with 0 a layer with fewer
  than 1/α channels kept or dropped would never change.
- `rerank`, off. The framework chooses the early layers anew each round, by the current weights. The algorithm chooses
  the channels of all layers in round 1 and afterwards lets swaps alone move them, within a limit; a channel that
  changes in an early layer takes the inputs of a client's later layers with it, and has no limit.

The tested model is the client's submodel of the current global weights, divided as it was trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from pa3dfl.core.rng import generator, key
from pa3dfl.core.tree import Tree, put, take
from pa3dfl.methods.base import Batch, Method, Update, option
from pa3dfl.methods.common.slicing import Places, chosen_places, cut, merge
from pa3dfl.methods.tailorfl.importance import correlation, learned, swapped, top
from pa3dfl.methods.task import Client, Task
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
        model = initial(task)
        masks = by_weight(task, model, list(channels(task.model).layers))
        n, last = len(task.clients), len(model[f"{task.model.layers[-1]}.weight"])
        return put(MODEL, model) | put(MASK, masks) | {LAST: torch.zeros(n, last), KNOWN: torch.zeros(n)}

    def extend(self, task: Task, server: Tree) -> Tree:
        for k, fresh in put(MASK, take(MASK, self.init_server(task))).items():
            mask, fresh = server[k], fresh.to(server[k])
            server[k] = torch.where((mask.sum(1) == fresh.sum(1))[:, None], mask, fresh)
        return server

    def init_client(self, task: Task, client: Client) -> Tree:
        return importances(self, task, client)

    def download(self, task: Task, server: Tree, clients: Sequence[Client], rnd: int) -> list[Tree]:
        model = take(MODEL, server)
        return [scaled(self.factors(task, c.width), cut(model, places_of(task, server, c))) for c in clients]

    def begin(self, task: Task, client: Client, down: Tree, private: Tree) -> tuple[Tree, Tree]:
        return down, put(IMPORTANCE, private)

    def finish(self, task: Task, width: Fraction, theta: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        return theta | fixed, take(IMPORTANCE, fixed)

    def aggregate(self, task: Task, server: Tree, updates: list[Update], rnd: int) -> Tree:
        model, places = take(MODEL, server), [places_of(task, server, u.client) for u in updates]
        trees = []
        for u in updates:
            back = {k: 1 / f for k, f in self.factors(task, u.client.width).items()}
            trees.append(scaled(back, {k: u.tree[k] for k in model}))
        server |= put(MODEL, merge(model, trees, places, [float(u.n / u.client.width) for u in updates]))
        for u in updates:
            if not server[KNOWN][u.client.id]:
                server[KNOWN][u.client.id] = 1
                server[LAST][u.client.id] = u.tree[IMPORTANCE + task.model.layers[-1]]
                for group in personal_groups(task):
                    members = channels(task.model).layers[group]
                    score = by_channel(
                        task, group, torch.stack([u.tree[IMPORTANCE + n].square() for n in members]).sum(0)
                    )
                    server[MASK + group][u.client.id] = top(score, kept(task, u.client)[group])
        related = correlation(server[LAST])
        for group in personal_groups(task):
            size, counts = channels(task.model).sizes[group], [kept(task, c)[group] for c in task.clients]
            rooms = [min(k, size - k) for k in counts]
            # What is lost in a float product must not cost a swap.
            limits = [min(room, max(self.min_swaps, int(self.alpha * room + 1e-9))) for room in rooms]
            server[MASK + group] = swapped(server[MASK + group], related, server[KNOWN], limits)
        if self.rerank:
            early = [g for g in channels(task.model).layers if g not in personal_groups(task)]
            server |= put(MASK, by_weight(task, take(MODEL, server), early))
        return server

    def factors(self, task: Task, width: Fraction) -> dict[str, float]:
        """What entries of a submodel are multiplied by when it is sent."""
        full, own = task.model.shapes(Fraction(1)), task.model.shapes(width)
        if self.divide == "all":
            return dict.fromkeys(full, float(1 / width))
        layers = [f"{n}.weight" for n in (*task.model.layers, task.model.head)]
        power = 0.5 if self.divide == "root" else 1.0
        return {k: float(1 / width) ** power for k in layers if own[k][1] < full[k][1]}


def initial(task: Task) -> Tree:
    """The full model at the start: server and clients make the same one from the seed."""
    return task.model.init(Fraction(1), key(task.seed, "model"))


# A client that was never trained is asked again at every test.
@lru_cache(maxsize=256)
def importances(method: TailorFL, task: Task, client: Client) -> Tree:
    frozen = {k: v.to(task.device, task.dtype) for k, v in initial(task).items()}
    return learned(task.model, frozen, batches(method, task, client), method.lam, task.local.rate(1))


def batches(method: TailorFL, task: Task, client: Client) -> list[Batch]:
    """As many full batches of the client's training data as there are steps, in fresh orders one after another."""
    g, rows = generator(task.seed, "importance", client.id), task.data.rows(client.id, "train")
    if not len(rows):  # nothing is measured where only costs are asked for
        return []
    n = method.importance_steps * task.local.batch
    orders = [rows[torch.randperm(len(rows), generator=g)] for _ in range(0, n, len(rows))]
    steps = torch.cat(orders)[:n].split(task.local.batch)
    crops = [task.data.draw_crops(task.local.batch, g) for _ in steps]
    return [task.data.batch(rows, crop, task.dtype) for rows, crop in zip(steps, crops, strict=True)]


def personal_groups(task: Task) -> list[str]:
    """The second half of the layers, where clients differ; of layers that belong together the first counts."""
    late = task.model.layers[len(task.model.layers) // 2 :]
    return [g for g in channels(task.model).layers if g in late]


def kept(task: Task, client: Client) -> dict[str, int]:
    """How many channels of each group a client holds."""
    shapes, known = task.model.shapes(client.width), channels(task.model)
    return {g: shapes[f"{g}.weight"][g in task.model.tables] // known.units[g] for g in known.layers}


def places_of(task: Task, server: Tree, client: Client) -> Places:
    # Not nonzero(): how many there are is known, and a tensor without contents has none.
    held = {
        g: server[MASK + g][client.id].argsort(descending=True, stable=True)[:k] for g, k in kept(task, client).items()
    }
    return chosen_places(task.model, client.width, held)


def by_weight(task: Task, model: Tree, groups: Sequence[str]) -> Tree:
    """Masks of all clients that keep the channels with the largest squared weights."""
    masks = {}
    for group in groups:
        members = channels(task.model).layers[group]
        rows = [model[f"{n}.weight"].T if n in task.model.tables else model[f"{n}.weight"] for n in members]
        score = by_channel(task, group, torch.stack([w.flatten(1).square().sum(1) for w in rows]).sum(0))
        masks[group] = torch.stack([top(score, kept(task, c)[group]) for c in task.clients])
    return masks


def by_channel(task: Task, group: str, scores: Tensor) -> Tensor:
    """Scores of outputs that belong together, summed."""
    return scores.view(-1, channels(task.model).units[group]).sum(1)


def scaled(factors: dict[str, float], tree: Tree) -> Tree:
    return {k: v * factors.get(k, 1.0) for k, v in tree.items()}
