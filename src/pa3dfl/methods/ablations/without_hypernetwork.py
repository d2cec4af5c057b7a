"""Pa3dFL without its hyper-network (paper, table `tb_ablation`, "w.o. HN-based Agg."): nothing personal is shared.

θ_v and the local head stay on their client from round to round; only general parameters, biases and norms are
averaged. They start where the hyper-network's common part would have them start.
"""

from dataclasses import dataclass

from pa3dfl.methods.pa3dfl import HEAD, HN, Pa3dFL, hypernetwork, layout
from pa3dfl.task import Client, Task
from pa3dfl.tree import Tree, leading, put


@dataclass(frozen=True)
class WithoutHyperNetwork(Pa3dFL):
    name = "pa3dfl-without-hn"
    summary = "ablation: Pa3dFL whose personal parameters stay on the client"

    def init_server(self, task: Task) -> Tree:
        return {k: v for k, v in super().init_server(task).items() if not k.startswith(HN)}

    def init_client(self, task: Task, client: Client) -> Tree:
        parts, hn = layout(self, task), hypernetwork(self, task)
        shapes = parts.v_shapes(client.width) | put(HEAD, parts.head)
        common = hn.biases(task.seed)
        return {k: leading(common[k].view(hn.outputs[k].shape), shape).clone() for k, shape in shapes.items()}
