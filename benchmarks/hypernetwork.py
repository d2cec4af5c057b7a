"""The hyper-network of ResNet-18 on a GPU, for 20 clients: generation and update. Part of `benchmarks.gpu`."""

import gc
from typing import Any

import torch

from benchmarks.tasks import cohort, make, timed
from pa3dfl.core.tree import Tree, count, nbytes, put
from pa3dfl.methods.pa3dfl.method import Pa3dFL, hypernetwork, layout


def generation(precision: str) -> dict[str, Any]:
    method, task = make("resnet", "pa3dfl", precision)
    assert isinstance(method, Pa3dFL)
    hn, parts, chosen = hypernetwork(method, task), layout(method, task), cohort(task)
    tree = {k: v.to(task.device) for k, v in hn.init(len(task.clients), 0).items()}
    shapes = [parts.v_shapes(c.width) | put("head.", parts.head) for c in chosen]
    ids = [c.id for c in chosen]
    before: list[int] = []

    def turned() -> tuple[()]:
        """The same clients in another order: plans that were made for a cohort are of no use to the next."""
        shapes.append(shapes.pop(0))
        ids.append(ids.pop(0))
        return ()

    def trained() -> tuple[list[Tree]]:
        """A little more than clients are given."""
        turned()
        made = [{k: v + 1e-3 for k, v in t.items()} for t in hn.generate(tree, ids, shapes)]
        turned()
        made.append(made.pop(0))
        gc.collect()
        before.append(torch.cuda.memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        return (made,)

    generate = timed(lambda: hn.generate(tree, ids, shapes), 5, turned)
    clients = sum(map(nbytes, hn.generate(tree, ids, shapes)))
    update = timed(lambda made: hn.update(tree, ids, made), 5, trained)
    beyond = torch.cuda.max_memory_allocated() - before[-1]
    return {
        "precision": precision, "parameters": count(tree), "generate_ms": 1e3 * generate, "update_ms": 1e3 * update,
        "beyond_gib": beyond / 2**30, "parameters_gib": nbytes(tree) / 2**30,
        "clients_gib": clients / 2**30,
    }  # fmt: skip
