"""Local steps on a CPU as TorchScript functions, which run without Python.

A narrow network's step is some hundred operations of microseconds each. Python and autograd take about as long to
launch them, and hold Python's lock, for which other threads wait. So the operations of the forward and backward pass
are recorded (`tape.py`), and TorchScript runs them for all steps of the same kind, in one call and without the lock. A
recording is used only after a step that ran both ways with the same bits, so that it changes no result.

TorchScript is deprecated. PA3DFL_TORCHSCRIPT=0 switches it off, and everything works without it, more slowly. Remove
this module and `tape.py` when a PyTorch release that the project supports has no `torch.jit.CompilationUnit`, or when
`benchmarks.rounds` shows no gain from it (with a Python without the global lock, for instance).
"""

import os
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.core.tree import Tree
from pa3dfl.engines import local
from pa3dfl.engines.cpu.tape import Results, Tape
from pa3dfl.methods.base import Batch, Method
from pa3dfl.methods.problem import Task

SWITCH = "PA3DFL_TORCHSCRIPT"
# A step is recorded at this repetition: recording takes about as long as it saves in as many steps.
OFTEN = 50


def enabled() -> bool:
    """Whether the environment allows TorchScript."""
    value = os.environ.get(SWITCH, "1")
    if value not in ("0", "1"):
        raise UserError(f"{SWITCH} is {value!r}: expected 0 (steps stay in Python) or 1")
    return value == "1"


@dataclass
class Step:
    """The step for one kind of batch: in Python at first, then recorded, checked against Python, and replayed."""

    tell: Callable[[str], None]
    times: int = 0
    replay: Callable[..., Results] | None = None
    proven: bool = False

    def __call__(self, in_python: Callable[[], Results], *inputs: Tensor) -> Results:
        replay = self.replay  # other threads may change it
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
        in_python()  # fills caches of this thread, such as its network, which must not be recorded
        with Tape(inputs) as tape:
            results = in_python()
        try:
            self.replay = tape.replay(results)
        except Exception as e:  # a user's network or method may raise anything
            self.tell(reason(e))
        return results

    def _prove(self, replay: Callable[..., Results], results: Results, *inputs: Tensor) -> None:
        try:
            pairs = zip(results, replay(*inputs), strict=True)
            self.proven = all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs)
            why = "the replay differs from the original step"
        except Exception as e:
            why = reason(e)
        if not self.proven:
            self.replay = None
            self.tell(why)


@dataclass
class Kind:
    """The steps of all clients that run the same operations: a loss depends on widths, never on clients."""

    method: Method
    task: Task
    steps: dict[Hashable, Step] = field(default_factory=dict)


class TorchScriptSteps:
    def __init__(self) -> None:
        self._kinds: dict[Hashable, Kind] = {}
        self._told: set[str] = set()

    def stepper(
        self, method: Method, task: Task, width: Fraction, theta: Tree, fixed: Tree, rate: Tensor
    ) -> local.Stepper:
        """`local.stepper` with the same results, from recordings where they exist."""
        if not local.repeatable(method, task) or task.device.type != "cpu":
            return local.stepper(method, task, width, theta, fixed, rate)
        kind = self._kinds.setdefault((id(method), id(task), width, form(theta), form(fixed)), Kind(method, task))
        sgd, tensors = local.SGD.of(method, task.local, theta), (*theta.values(), *fixed.values())

        def step(batch: Batch, draws: Tree) -> Tensor:
            like = (batch[0].shape, batch[0].stride(), *((k, v.item()) for k, v in draws.items()))
            known = kind.steps.get(like) or kind.steps.setdefault(like, Step(lambda why: self._tell(method.name, why)))
            loss, *gradients = known(
                lambda: local.differentiate(method, task, width, theta, fixed, batch, draws, sgd.params),
                *tensors, *batch,
            )  # fmt: skip
            sgd.step(gradients, rate)
            return loss

        return step

    def _tell(self, name: str, why: str) -> None:
        if name not in self._told:
            self._told.add(name)
            said = f"steps of {name} stay in Python, which gives the same results but is slower: {why[:200]}"
            log.warning(f"{said} (capturable = False in the method avoids this message)")


def reason(e: Exception) -> str:
    """What failed, in one line. TorchScript's interpreter says it at the end, below the operation."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()] or [repr(e)]
    here = next((i for i, line in enumerate(lines) if "<--- HERE" in line), 0)
    operation = re.search(r"torch\.ops\.([\w.]+)", lines[here - 1]) if here else None
    return f"{operation[1]}: {lines[-1]}" if operation else lines[0]


def form(tree: Tree) -> Hashable:
    """Names, shapes, strides and types: all that decides which operations run."""
    return tuple((k, v.shape, v.stride(), v.dtype) for k, v in tree.items())
