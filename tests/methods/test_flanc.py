from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import learns
from pa3dfl.core.tree import take
from pa3dfl.engines.accounting import encoder_forward
from pa3dfl.engines.cost import cost
from pa3dfl.methods.assembly import make_model
from pa3dfl.methods.flanc import BANK, COEF, FLANC, banks, compose, of
from pa3dfl.methods.problem import Client
from pa3dfl.models import Model

FULL, NARROW = Fraction(1), Fraction(1, 16)


@pytest.mark.parametrize(
    ("width", "multiply_adds", "mebibytes"),
    [("1/16", 14.99, 0.063), ("1/8", 18.17, 0.097), ("1/2", 42.27, 0.772), ("1", 87.70, 2.931)],
)
def test_costs_equal_the_efficiency_table(width, multiply_adds, mebibytes):
    model = make_model("cnn-cifar100", FLANC(), (3, 32, 32), 100, NARROW)
    [record] = cost(FLANC(), model, NARROW, 128, [Fraction(width)])
    assert round(record["encoder_multiply_adds"] / 1e7, 2) == multiply_adds
    assert round(record["encoder_bytes"] / 2**20, 3) == mebibytes


def test_composed_weight_by_its_definition():
    bank, coef = torch.randn(3, 2, 5, 5), torch.randn(4, 2 * 3)
    expected = torch.zeros(4, 2 * 2, 5, 5)
    for t in range(4):
        for g in range(2):
            for c in range(2):
                expected[t, g * 2 + c] = sum(coef[t, g * 3 + r] * bank[r, c] for r in range(3))
    torch.testing.assert_close(compose(bank, coef), expected)


class Odd(nn.Module):
    """What the paper lacks: grouped and dilated convolutions, a linear layer on more than a vector."""

    def __init__(self, width: float, num_classes: int = 4) -> None:
        super().__init__()
        w = int(32 * width)
        self.first = nn.Conv2d(1, w, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(w, w, 3, padding="same", groups=2)
        self.dilated = nn.Conv2d(w, w, 3, dilation=2, padding=2, padding_mode="circular")
        self.mix = nn.Linear(w, w)
        self.norm = nn.GroupNorm(1, w)
        self.head = nn.Linear(w, num_classes)

    def forward(self, x):
        x = self.norm(self.dilated(F.relu(self.grouped(self.first(x)))))
        return self.head(self.mix(x.movedim(1, -1)).mean((1, 2)))


@pytest.mark.parametrize("width", ["1/16", "3/16", "1"])
@pytest.mark.parametrize("name", ["cnn-fashion", "cnn-cifar100", "resnet18-gn", "odd"])
def test_composed_and_factored_application_agree(make_task, name, width):
    method, width = FLANC(), Fraction(width)
    task = make_task(method)
    shape = (3, 32, 32) if name in ("cnn-cifar100", "resnet18-gn") else (1, 8, 8)
    model = Model(Odd, name, shape, 4) if name == "odd" else make_model(name, method, shape, 4, NARROW)
    client = Client(0, width**2, width, 8)
    task = replace(task, model=model, clients=[client])
    server = {k: v.double() for k, v in method.init_server(task).items()}
    theta, fixed = method.begin(task, client, method.download(task, server, [client], 1)[0], {})
    x = torch.randn(3, *shape, dtype=torch.float64)
    features = model.features(method.weights(task, width, theta, fixed), x, width)
    assert features.abs().max() > 1e-3
    factored = encoder_forward(method, task, width, theta, fixed, x)
    torch.testing.assert_close(factored, features, rtol=0, atol=1e-9)
    # One step, on the whole model.
    theta = {k: v.requires_grad_() for k, v in theta.items()}
    loss = method.loss(task, width, theta, fixed, (x, torch.arange(3)), {})
    gradients = torch.autograd.grad(loss, list(theta.values()))
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


def test_banks_start_orthogonal_and_the_loss_counts_how_far_they_are(make_task):
    method = FLANC(lam=3.0)
    task = make_task(method)
    server = {k: v.double() for k, v in method.init_server(task).items()}
    for layer, (R2, R1, *kernel) in banks(method, task).items():
        B = server[BANK + layer].flatten(1)
        assert B.shape == (R2, R1 * torch.tensor(kernel).prod())
        gram = B @ B.T if B.shape[1] >= R2 else B.T @ B
        torch.testing.assert_close(gram, torch.eye(len(gram), dtype=B.dtype), rtol=0, atol=1e-5)
    client = task.clients[0]
    [theta] = method.download(task, server, [client], 1)
    batch = torch.randn(5, 1, 8, 8, dtype=torch.float64), torch.arange(5) % 4
    with_term, without = (m.loss(task, client.width, theta, {}, batch, {}) for m in (method, FLANC(lam=0.0)))
    distance = sum(
        (v.flatten(1) @ v.flatten(1).T - torch.eye(len(v), dtype=v.dtype)).square().mean()
        for v in take(BANK, theta).values()
    )
    torch.testing.assert_close(with_term - without, 3 * distance)


def test_coefficients_move_only_within_equal_widths(make_task, play):
    method = FLANC()
    task = make_task(method, setting="list:1,1,1/4,1/256")
    assert [str(c.width) for c in task.clients] == ["1", "1", "1/2", "1/16"]
    played = play(method, task, rounds=3, per_round=2)
    for before, updates, after in zip(played.servers, played.rounds, played.servers[1:], strict=False):
        for layer in task.model.layers:
            mean = sum(u.tree[BANK + layer] for u in updates) / len(updates)
            torch.testing.assert_close(after[BANK + layer], mean)
            assert not torch.equal(after[BANK + layer], before[BANK + layer])
        for width in {c.width for c in task.clients}:
            trees = [u.tree for u in updates if u.client.width == width]
            for k, old in take(of(width), before).items():
                if trees:
                    torch.testing.assert_close(after[of(width) + k], sum(t[k] for t in trees) / len(trees))
                else:
                    assert torch.equal(after[of(width) + k], old)
    moved = {str(u.client.width) for updates in played.rounds for u in updates}
    assert len(moved) > 1


def test_a_width_is_sent_its_own_coefficients_and_nothing_else(make_task):
    method = FLANC()
    task = make_task(method)
    server = method.init_server(task)
    for client, down in zip(task.clients, method.download(task, server, task.clients, 1), strict=True):
        shapes = task.model.shapes(client.width)
        assert not [k for k in down if ":" in k]
        head = {"plain/head.weight", "plain/head.bias"}
        assert down.keys() == {part + k for k in task.model.layers for part in (BANK, COEF)} | head
        for layer, (R2, R1, *_) in banks(method, task).items():
            t, s = shapes[f"{layer}.weight"][:2]
            assert down[COEF + layer].shape == (t, s // R1 * R2)


def test_widths_are_multiples_of_p_min():
    got = FLANC().widths([Fraction(k, 16) for k in (2, 3, 7, 16)], Fraction(1, 8))
    assert got == [Fraction(1, 8), Fraction(1, 8), Fraction(3, 8), Fraction(1)]


def test_flanc_learns(make_task):
    method = FLANC()
    task = make_task(method, epochs=5, lr=0.1, setting="list:1/16,1/16,1/64,1/256")
    learns(method, task, rounds=3, share=0.7)
