"""pFedGate with a head that is always kept."""

from fractions import Fraction

import pytest
import torch

from pa3dfl.methods.pfedgate import Blocks, PFedGate, cut, keep


def test_a_kept_head_is_charged_to_the_budget_first(make_task):
    """Linear layers: 40 entries, of which the head has 12 and first blocks elsewhere 4: at s = 1/2, 4 are left."""
    sizes = torch.tensor([(4, 0), (4, 0), (20, 0), (8, 0), (4, 0), (0, 3), (0, 3)], dtype=torch.float64)
    always = torch.tensor([True, False, False, True, True, True, False])
    scores = torch.tensor([0.1, 0.2, 0.9, 0.0, 0.0, 0.1, 0.5])
    kept = [keep(scores, Blocks({}, sizes, always), torch.tensor(s).double()).tolist() for s in (0.5, 0.3, 1.0)]
    assert kept[0] == [True, True, False, True, True, True, False]
    assert kept[1] == [True, False, False, True, True, True, False], "16 of 40 exceed 0.3, and stay"
    assert kept[2] == [True] * 7


@pytest.mark.parametrize("keep_head", [False, True])
def test_which_classes_the_weakest_client_can_predict(make_task, keep_head):
    """Below 1/5 the first of four classes has weights, or all of them have."""
    method = PFedGate(keep_head=keep_head)
    task = make_task(method)
    client = task.clients[3]
    assert client.r == Fraction(1, 256)
    blocks = cut(method, task)
    per_tensor = [n for n, _ in blocks.cuts.values()]
    expected = [i == 0 for n in per_tensor for i in range(n)]
    expected[-sum(per_tensor[-2:]) :] = [True] * 9 if keep_head else expected[-9:]
    assert list(blocks.cuts)[-2:] == ["head.weight", "head.bias"]
    assert blocks.always.tolist() == expected
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    gate = {k: v.to(task.dtype) for k, v in method.init_client(task, client).items()}
    theta, fixed = method.begin(task, client, server, gate)
    x, _ = task.data.batch(task.data.rows(client.id, "train")[:12], None, task.dtype)
    theta["head.bias"] += 1.0
    logits = method.predict(task, Fraction(1), theta | fixed, x)
    reached = (logits.abs() > 1e-9).all(0).tolist()
    # Of 4 × 128 weights a fifth, 103 entries, is kept: those of class 0.
    assert reached == ([True] * 4 if keep_head else [True, False, False, False])
