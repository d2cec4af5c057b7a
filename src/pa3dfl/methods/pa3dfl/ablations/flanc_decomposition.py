"""Pa3dFL with the decomposition of FLANC (paper, equation `eqflanc` and table `tb_ablation`).

θ_u is a basis of R2 filters over R1 inputs, and every output channel mixes all of them: W[t, g·R1 + c, k] =
Σ_r u[(c, k), r]·v[t, g, r]. So no part of θ_u belongs to one output channel, unlike in Pa3dFL's own
decomposition. R1 = S·p_min (S where inputs are not pruned), R2 by Pa3dFL's rule; pruning keeps leading
outputs and leading groups of inputs.
"""

from dataclasses import dataclass

from torch import Tensor

from pa3dfl.core.tree import Tree
from pa3dfl.methods.pa3dfl.decomposition import LayerPlan, Layout
from pa3dfl.methods.pa3dfl.method import Pa3dFL
from pa3dfl.methods.problem import Problem


@dataclass(frozen=True)
class FlancDecomposition(Pa3dFL):
    name = "pa3dfl-flanc"
    summary = "ablation: Pa3dFL with the decomposition of FLANC"

    def decompose(self, problem: Problem) -> Layout:
        own, narrow = super().decompose(problem), problem.model.shapes(problem.p_min)
        return FlancLayout(own.model, tuple(of(p, narrow) for p in own.layers), own.plain, own.head)


class FlancLayer(LayerPlan):
    def v_shape(self, weight: tuple[int, ...] | None = None) -> tuple[int, int, int]:
        t, s = (weight[0], weight[1]) if weight else (self.outputs, self.inputs)
        return (t, s // self.R1, self.R2)


class FlancLayout(Layout):
    def weights(self, u: Tree, v: Tree, order: str = "recover") -> Tree:
        return {f"{p.name}.weight": compose(p, u[p.name], v[p.name]) for p in self.layers}


def of(plan: LayerPlan, narrow: dict[str, tuple[int, ...]]) -> FlancLayer:
    R1 = narrow[f"{plan.name}.weight"][1]
    return FlancLayer(plan.name, plan.outputs, plan.inputs, plan.kernel, R1, plan.R2 if plan.kernel else R1)


def compose(plan: LayerPlan, u: Tensor, v: Tensor) -> Tensor:
    """The plain weight, with as many outputs and inputs as θ_v holds."""
    return (v.flatten(0, 1) @ u.T).view(v.shape[0], v.shape[1] * plan.R1, *plan.kernel)
