"""Records a computation as a TorchScript function of its tensors: the same operations in the same order."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

Results = tuple[Tensor, ...]
# TorchScript ignores device arguments.
IGNORED = ("device", "pin_memory")


class Tape(TorchDispatchMode):
    """Records every operation below autograd inside its context."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default would load torch.compile, which takes a second

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._fresh = (f"v{i}" for i in count())
        self._names = WeakTensorKeyDictionary()  # weak, so that unused tensors are freed
        self._lines: list[str] = []
        self._constants: list[Tensor] = []
        self._refused = ""
        self._inputs = [self._named(t) for t in inputs]

    def replay(self, outputs: Results) -> Callable[..., Results]:
        """The recorded function: takes tensors like the inputs and returns tensors like `outputs`."""
        if self._refused:
            raise ValueError(self._refused)
        names = [*self._inputs, *(self._names[t] for t in self._constants)]
        returned = ", ".join(self._names[t] for t in outputs)
        lines = [f"def replay({', '.join(f'{n}: Tensor' for n in names)}):", *self._lines, f"return ({returned},)\n"]
        run = torch.jit.CompilationUnit("\n    ".join(lines)).replay
        constants = tuple(t.detach() for t in self._constants)

        def replay(*inputs: Tensor) -> Results:
            # With gradients, because oneDNN's LSTM keeps only then what its backward pass needs; detached, so that no
            # graph is built. Not optimised: the optimiser splits a product with bias, which then rounds twice.
            detached = (t.detach() for t in inputs)
            with torch.enable_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined, unused-ignore]
                results: Results = run(*detached, *constants)
                return results

        return replay

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        known = any(isinstance(a, Tensor) and a in self._names for a in tree_leaves((args, kwargs)))
        if torch.Tag.data_dependent_output in func.tags:
            if known:
                self._refused = f"{func} reads values, and later operations may depend on them"
            return out  # values of constants are constant
        if torch.Tag.nondeterministic_seeded in func.tags and not _without_dropout(func, args, kwargs):
            self._refused = f"{func} draws random numbers, so that a replay cannot be checked"
        if func is torch.ops.aten.detach.default:  # autograd's alias of the same tensor
            self._names[out] = self._text(args[0])
            return out
        given = [self._text(a) for a in args] + [f"{k}={self._text(v)}" for k, v in kwargs.items() if k not in IGNORED]
        target = self._target(out)
        self._lines.append(f"{target} = torch.ops.{func._schema.name.replace('::', '.')}({', '.join(given)})")
        if isinstance(out, list):
            self._lines += [f"{self._named(t)} = {target}[{i}]" for i, t in enumerate(out)]
        return out

    def _named(self, tensor: Tensor) -> str:
        """The tensor's name. In-place operations return their argument, which keeps its name."""
        if tensor not in self._names:
            self._names[tensor] = next(self._fresh)
        name: str = self._names[tensor]
        return name

    def _target(self, out: Any) -> str:
        if isinstance(out, Tensor):
            return self._named(out)
        if isinstance(out, tuple):
            return ", ".join("_" if t is None else self._named(t) for t in out)
        return next(self._fresh)

    def _text(self, given: Any) -> str:
        if isinstance(given, Tensor):
            if given not in self._names:  # not an input: a constant of the recording
                self._constants.append(given)
            return self._named(given)
        if isinstance(given, (list, tuple)):
            return f"[{', '.join(self._text(g) for g in given)}]"
        return f'float("{given!r}")' if isinstance(given, float) else str(given)


def _without_dropout(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the operation is attention with a dropout of zero."""
    names = [a.name for a in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    return "dropout_p" in names and not given.get("dropout_p", 0.0)
