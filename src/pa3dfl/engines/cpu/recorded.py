"""Steps on a CPU without Python: taped once, then run from the tape.

A narrow network's step is some hundred operations of microseconds each. Python and autograd take about as long to give
them out, and under a lock for which the other threads wait. So what forward and backward pass do for a kind of batch is
taped, and TorchScript runs that for all others of its kind, in one call and without the lock. The first of them is done
both ways, and a tape is used only if it gives the same bits: which steps are recorded changes nothing.
"""

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from pa3dfl.core.tree import Tree
from pa3dfl.engines import local
from pa3dfl.engines.cpu.tape import Results, Tape
from pa3dfl.methods.base import Batch, Method
from pa3dfl.methods.task import Task

# A step is recorded when it has been done so often: recording takes about as long as it saves in as many.
OFTEN = 50


@dataclass
class Step:
    """Of one kind of batch: in Python, until it has been done often; then recorded, proven, and replayed."""

    tell: Callable[[str], None]
    times: int = 0
    replay: Callable[..., Results] | None = None
    proven: bool = False

    def __call__(self, in_python: Callable[[], Results], *inputs: Tensor) -> Results:
        replay = self.replay  # other threads are at it too
        if replay is not None and self.proven:
            return replay(*inputs)
        times = self.times = self.times + 1
        if times == OFTEN:
            return self._record(in_python, *inputs)
        results = in_python()
        if replay is not None:
            self._prove(replay, results, *inputs)
        return results

    def _record(self, in_python: Callable[[], Results], *inputs: Tensor) -> Results:
        in_python()  # what is made at a thread's first step, such as its network, is no part of the others
        with Tape(inputs) as tape:
            results = in_python()
        try:
            self.replay = tape.replay(results)
        except Exception as e:  # of a network or method of somebody's own: anything
            self.tell(str(e) or repr(e))
        return results

    def _prove(self, replay: Callable[..., Results], results: Results, *inputs: Tensor) -> None:
        try:
            pairs = zip(results, replay(*inputs), strict=True)
            self.proven = all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs)
            reason = "done again, a step is another one"
        except Exception as e:
            reason = str(e) or repr(e)
        if not self.proven:
            self.replay = None
            self.tell(reason)


@dataclass
class Kind:
    """All clients whose steps are the same operations: a loss knows widths, never clients."""

    method: Method
    task: Task
    steps: dict[Hashable, Step] = field(default_factory=dict)


class Recorded:
    def __init__(self) -> None:
        self._kinds: dict[Hashable, Kind] = {}
        self._told: set[str] = set()

    def stepper(
        self, method: Method, task: Task, width: Fraction, theta: Tree, fixed: Tree, rate: Tensor
    ) -> local.Stepper:
        """`local.stepper` with the same results, from recordings where there are some."""
        if not local.repeatable(method, task) or task.device.type != "cpu":
            return local.stepper(method, task, width, theta, fixed, rate)
        kind = self._kinds.setdefault((id(method), id(task), width, form(theta), form(fixed)), Kind(method, task))
        sgd, tensors = local.SGD.of(method, task.local, theta), (*theta.values(), *fixed.values())

        def step(batch: Batch, noise: Tree) -> Tensor:
            like = (batch[0].shape, batch[0].stride(), *((k, v.item()) for k, v in noise.items()))
            known = kind.steps.get(like) or kind.steps.setdefault(like, Step(lambda why: self._tell(method.name, why)))
            loss, *gradients = known(
                lambda: local.differentiate(method, task, width, theta, fixed, batch, noise, sgd.params),
                *tensors, *batch,
            )  # fmt: skip
            sgd.step(gradients, rate)
            return loss

        return step

    def _tell(self, name: str, reason: str) -> None:
        if name not in self._told:
            self._told.add(name)
            said = f"steps of {name} stay in Python, which is slower: {reason.strip().splitlines()[0][:150]}"
            print(f"{said} (a method with capturable = False says so itself)", file=sys.stderr)


def form(tree: Tree) -> Hashable:
    return tuple((k, v.shape, v.stride(), v.dtype) for k, v in tree.items())
