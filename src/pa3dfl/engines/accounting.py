"""How the paper's efficiency table counts each method: forward multiply-adds and parameters of the encoder.

The defaults suit methods that train a plain model. A method that the table counts in another way registers its own
function here, by class; a user's own method can do the same. Nothing here takes part in training.
"""

from fractions import Fraction
from functools import singledispatch
from typing import Self

from torch import Tensor

from pa3dfl.core.tree import Tree, leading, take
from pa3dfl.methods import Method, Problem
from pa3dfl.methods.common.contraction import ORDERS, Apply, Factored
from pa3dfl.methods.flanc import BANK, COEF, FLANC, compose, plain
from pa3dfl.methods.pa3dfl.method import HEAD, Pa3dFL, V
from pa3dfl.methods.pfedgate import GATE, PFedGate, score
from pa3dfl.models.conv import Window


@singledispatch
def encoder_forward(method: Method, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, x: Tensor) -> Tensor:
    """A batch through the encoder, by the operations that the table counts."""
    return problem.model.features(method.weights(problem, width, theta, fixed), x, width)


@singledispatch
def in_head(method: Method, problem: Problem, name: str) -> bool:
    """Whether an entry of theta belongs to a head, which the table leaves out."""
    return name.rpartition("/")[2].startswith(problem.model.head + ".")


@singledispatch
def orders(method: Method) -> tuple[str, ...]:
    """The values of the option `order` to count; the table uses "recover". Empty: the method has no such option."""
    return ()


@encoder_forward.register
def _(method: Pa3dFL, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, x: Tensor) -> Tensor:
    return method.features(problem, width, theta, x)


@in_head.register
def _(method: Pa3dFL, problem: Problem, name: str) -> bool:
    return name.startswith(V + HEAD)


@orders.register
def _(method: Pa3dFL) -> tuple[str, ...]:
    return ORDERS


@encoder_forward.register
def _(method: PFedGate, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, x: Tensor) -> Tensor:
    """The gate, and a model of width p in place of one with a sparsity of p²."""
    score(take(GATE, theta), x)
    narrow = {k: leading(theta[k], shape) for k, shape in problem.model.shapes(width).items()}
    return problem.model.features(narrow, x, width)


@encoder_forward.register
def _(method: FLANC, problem: Problem, width: Fraction, theta: Tree, fixed: Tree, x: Tensor) -> Tensor:
    """Apply the bank, then the coefficients."""
    factors = {f"{k}.weight": Composed(theta[BANK + k], theta[COEF + k]) for k in problem.model.layers}
    return problem.model.features(plain(problem, width, theta) | factors, x, width)


class Composed(Factored):
    """FLANC's bank and coefficients in the place of a weight; groups of inputs become rows of a batch."""

    bank: Tensor
    coef: Tensor

    def __new__(cls, bank: Tensor, coef: Tensor) -> Self:
        inputs = coef.shape[1] // len(bank) * bank.shape[1]
        made = super().__new__(cls, "factors", (len(coef), inputs, *bank.shape[2:]))
        made.bank, made.coef = bank, coef
        return made

    def recover(self, window: Window = ()) -> Tensor:
        return compose(self.bank[(slice(None),) * 2 + window], self.coef)

    def in_turn(self, x: Tensor, window: Window, spatial: Apply, pointwise: Apply) -> Tensor:
        if self.bank.ndim == 2:
            return pointwise(spatial(x.unflatten(-1, (-1, self.bank.shape[1])), self.bank).flatten(-2), self.coef)
        y = spatial(x.unflatten(1, (-1, self.bank.shape[1])).flatten(0, 1), self.bank[(slice(None),) * 2 + window])
        return pointwise(y.unflatten(0, (len(x), -1)).flatten(1, 2), self.coef)
