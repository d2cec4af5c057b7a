from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pa3dfl.core.randomness import key
from pa3dfl.core.tree import put, take
from pa3dfl.engines import Round, local
from pa3dfl.engines.cost import cost
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods.assembly import make_model
from pa3dfl.methods.pfedgate import GATE, Blocks, PFedGate, cut, keep, score

FULL, NARROW = Fraction(1), Fraction(1, 16)


def at_start(method, task, client):
    """What a client trains and what is fixed before its first round, in the task's precision."""
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    gate = {k: v.to(task.dtype) for k, v in method.init_client(task, client).items()}
    return method.begin(task, client, server, gate)


def batch_of(task, client, n=12):
    return task.data.batch(task.data.rows(client.id, "train")[:n], None, task.dtype)


@pytest.mark.parametrize(("width", "multiply_adds"), [("1/16", 5.52), ("1/8", 10.17), ("1/2", 61.02), ("1", 190.02)])
def test_costs_equal_the_efficiency_table(width, multiply_adds):
    model = make_model("cnn-cifar100", PFedGate(), (3, 32, 32), 100, NARROW)
    [record] = cost(PFedGate(), model, NARROW, 128, [Fraction(width)])
    assert round(record["encoder_multiply_adds"] / 1e7, 2) == multiply_adds
    assert (
        record["bytes_up"]
        == record["bytes_down"]
        == 4 * sum(torch.Size(s).numel() for s in model.shapes(FULL).values())
    )


def test_blocks_of_the_cifar100_network(make_task):
    task = make_task(PFedGate())
    task = replace(task, model=make_model("cnn-cifar100", PFedGate(), (3, 32, 32), 100, NARROW))
    blocks = cut(PFedGate(), task)
    assert len(blocks.sizes) == 50
    assert blocks.cuts["conv1.bias"] == (5, 13)  # 64 = 4·13 + 12
    assert blocks.sizes[5:10].tolist() == [[0, 13], [0, 13], [0, 13], [0, 13], [0, 12]]
    assert blocks.always.nonzero().flatten().tolist() == list(range(0, 50, 5))
    # Convolutions and their biases come first, then three linear layers.
    assert (blocks.sizes > 0).tolist() == [[False, True]] * 20 + [[True, False]] * 30
    assert blocks.sizes.sum() == sum(torch.Size(s).numel() for s in task.model.shapes(FULL).values())
    for name, shape in task.model.shapes(FULL).items():
        n, size = blocks.cuts[name]
        assert (n - 1) * size < torch.Size(shape).numel() <= n * size


@st.composite
def knapsacks(draw):
    """Blocks of random tensors in two pools, with scores that may be equal."""
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    sizes = [draw(st.integers(1, 10**6)) for n in counts for _ in range(n)]
    first = [i == 0 for n in counts for i in range(n)]
    linear = [x for n in counts for x in [draw(st.booleans())] * n]
    columns = torch.tensor([(n, 0) if x else (0, n) for n, x in zip(sizes, linear, strict=True)])
    blocks = Blocks({}, columns.double(), torch.tensor(first))
    scores = [draw(st.sampled_from([0.25, 0.5, 0.75]) | st.floats(0, 1)) for _ in sizes]
    return blocks, torch.tensor(scores), draw(st.floats(0.01, 1) | st.just(1.0))


@settings(deadline=None, max_examples=80)
@given(knapsacks())
def test_kept_blocks_stay_within_the_budget(case):
    blocks, scores, s = case
    kept = keep(scores, blocks, torch.tensor(s, dtype=torch.float64))
    assert kept.dtype == torch.bool
    assert kept[blocks.always].all()
    for pool in range(2):
        sizes = blocks.sizes[:, pool]
        mine, dropped = kept & (sizes > 0), ~kept & (sizes > 0)
        used, budget = sizes[mine].sum(), s * sizes.sum()
        assert used <= max(budget, sizes[blocks.always].sum())
        # What was dropped would not fit any more: nothing is wasted.
        assert (used + sizes[dropped] > budget).all()
        # A dropped block is never smaller than a kept one of a lower score.
        for i in dropped.nonzero().flatten():
            rivals = mine & ~blocks.always & (scores < scores[i])
            assert (sizes[rivals] < sizes[i]).all()
    if s == 1:
        assert kept.all()


def test_a_client_below_a_fifth_keeps_first_blocks_only(make_task):
    method = PFedGate()
    task = make_task(method)
    blocks = cut(method, task)
    kept = keep(torch.rand(len(blocks.sizes)), blocks, torch.tensor(0.01, dtype=torch.float64))
    assert torch.equal(kept, blocks.always)


def test_scores_by_torchs_own_norms():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, 4, 4, generator=g, dtype=torch.float64) * 3 + 1
    linear = torch.randn(7, 48, generator=g, dtype=torch.float64)
    affine = torch.rand(2, 3, 1, generator=g, dtype=torch.float64)
    out = torch.rand(2, 7, generator=g, dtype=torch.float64)
    scale, shift = affine[..., None]
    normed = [F.instance_norm(x), F.layer_norm(x, x.shape[1:]), F.batch_norm(x, None, None, training=True)]
    for i, expected in enumerate(normed):
        mix = torch.full((2, 3), -1e4, dtype=torch.float64)
        mix[:, i] = 0
        z = F.batch_norm(((expected * scale + shift).flatten(1)) @ linear.T, None, None, *out, training=True)
        got = score({"linear": linear, "in": affine, "out": out, "mix": mix}, x)
        torch.testing.assert_close(got, z.sigmoid().mean(0), rtol=0, atol=1e-9)


def test_an_open_gate_is_the_model_itself_and_scores_multiply(make_task):
    method = PFedGate()
    task = make_task(method)
    client = task.clients[0]
    assert client.r == 1
    theta, fixed = at_start(method, task, client)
    x, _ = batch_of(task, client)
    plain = method.weights(task, FULL, theta, fixed)
    theta[GATE + "out"][0] = 0.0
    theta[GATE + "out"][1] = 50.0  # sigmoid(50) is 1 to 22 digits
    torch.testing.assert_close(
        method.predict(task, FULL, theta | fixed, x), task.model(plain, x, FULL), rtol=0, atol=1e-12
    )
    theta[GATE + "out"][1] = 0.0
    half = {k: v / 2 for k, v in plain.items()}
    torch.testing.assert_close(
        method.predict(task, FULL, theta | fixed, x), task.model(half, x, FULL), rtol=0, atol=1e-12
    )


def test_dropped_blocks_do_not_train_but_their_scores_do(make_task):
    method = PFedGate()
    task = make_task(method)
    client = task.clients[2]
    assert client.r == Fraction(1, 16)
    assert client.width == 1
    theta, fixed = at_start(method, task, client)
    theta["head.bias"] += 1.0  # a score has no effect on what is zero
    theta = {k: v.requires_grad_() for k, v in theta.items()}
    batch = batch_of(task, client)
    loss = method.loss(task, FULL, theta, fixed, batch, {})
    gradients = dict(zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True))
    cuts = cut(method, task).cuts
    for name, (_, size) in cuts.items():
        assert not gradients[name].flatten()[size:].any()
    assert gradients["head.weight"].flatten()[: cuts["head.weight"][1]].any()
    # Straight through: of the head's bias only the first entry was kept, and every block has a gradient.
    assert list(cuts)[-1] == "head.bias"
    assert cuts["head.bias"] == (4, 1)
    assert (gradients[GATE + "out"][1, -4:] != 0).all()


def test_the_gate_steps_at_its_own_rate(make_task):
    moves = []
    for gate_lr in (0.05, 0.1, 0.0):
        method = PFedGate(gate_lr=gate_lr)
        # One batch: one step.
        task = make_task(method, batch=1000, epochs=1)
        client = task.clients[0]
        start, fixed = at_start(method, task, client)
        trained, _ = local.train(method, task, client, start, fixed, 1, "train")
        moves.append({k: trained[k] - start[k] for k in start})
    slow, fast, still = moves
    for k in slow:
        if k.startswith(GATE):
            torch.testing.assert_close(2 * slow[k], fast[k], rtol=1e-9, atol=1e-14)
            assert not still[k].any()
        else:
            assert torch.equal(slow[k], fast[k])
    assert slow[GATE + "linear"].any()
    assert slow["fc2.weight"].any()


def test_the_gate_never_leaves_its_client(make_task, play):
    method = PFedGate()
    task = make_task(method)
    played = play(method, task, rounds=2, per_round=2)
    shapes = task.model.shapes(FULL)
    for server in played.servers:
        assert server.keys() == shapes.keys()
    for updates, server in zip(played.rounds, played.servers[1:], strict=True):
        total = sum(u.n for u in updates)
        for u in updates:
            assert u.tree.keys() == shapes.keys()
            begun = method.init_client(task, u.client)
            assert u.private.keys() == begun.keys()
            assert not torch.equal(u.private["linear"], begun["linear"].double())
        for k in shapes:
            torch.testing.assert_close(server[k], sum(u.n / total * u.tree[k] for u in updates))


def test_tested_is_the_global_model_through_the_clients_gate(make_task, play):
    method = PFedGate()
    task = make_task(method, lr=0.1)
    played = play(method, task, rounds=1, per_round=2)
    u = played.rounds[0][0]
    server = played.servers[-1]
    [got] = Sequential().evaluate(Round(method, task, server, played.private, [u.client], 1), ["received"])
    x, y = task.data.batch(task.data.rows(u.client.id, "val"), None, task.dtype)
    candidate = server | put(GATE, u.private) | {GATE + "sparsity": torch.tensor(float(u.client.r)).double()}
    logits = method.predict(task, FULL, candidate, x)
    assert got.val_loss == pytest.approx(F.cross_entropy(logits, y).item(), abs=1e-9)


def test_clients_have_gates_of_their_own(make_task):
    method = PFedGate()
    task = make_task(method)
    a, b = (method.init_client(task, c) for c in task.clients[:2])
    assert not torch.equal(a["linear"], b["linear"])
    again = method.init_client(task, task.clients[0])
    assert all(torch.equal(again[k], v) for k, v in a.items())


@pytest.mark.parametrize("name", ["cnn-cifar100", "resnet18-gn"])
def test_a_batch_of_one_works_on_every_network(make_task, name):
    method = PFedGate()
    task = make_task(method, precision="fp32")
    task = replace(task, model=make_model(name, method, (3, 32, 32), 4, NARROW))
    theta, fixed = at_start(method, task, task.clients[1])
    theta = {k: v.requires_grad_() for k, v in theta.items()}
    loss = method.loss(task, FULL, theta, fixed, (torch.randn(1, 3, 32, 32), torch.tensor([2])), {})
    gradients = torch.autograd.grad(loss, list(theta.values()))
    assert all(g.isfinite().all() for g in gradients)


def test_gated_weights_start_near_the_initialisation_rule(make_task):
    method = PFedGate()
    task = make_task(method)
    theta, _ = at_start(method, task, task.clients[0])
    scores = score(take(GATE, theta), batch_of(task, task.clients[0])[0])
    torch.testing.assert_close(scores, torch.full_like(scores, 0.5), rtol=0, atol=0.05)
    for k, v in task.model.init(FULL, key(task.seed, "model")).items():
        assert torch.equal(theta[k] / 2, v.double())
