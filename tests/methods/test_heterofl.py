from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

from pa3dfl.core.tree import leading
from pa3dfl.engines.cost import cost
from pa3dfl.engines.local import train
from pa3dfl.methods.base import Update
from pa3dfl.methods.fedavg import FedAvg
from pa3dfl.methods.heterofl import OWNED, HeteroFL, scaled

PLAIN = HeteroFL(scaler=False, masked=False)


def batch_of(task, client):
    return task.data.batch(task.data.rows(client.id, "train")[:10], None, task.dtype)


def start(method, task, client):
    """The trees with which the client begins its first round."""
    server = {k: v.to(task.dtype) for k, v in method.init_server(task).items()}
    [down] = method.download(task, server, [client], 1)
    return method.begin(task, client, down, method.init_client(task, client))


def test_widths_are_halves_that_the_capacity_affords():
    affordable = [Fraction(i, 16) for i in range(1, 17)]
    halves = [Fraction(1, 2**i) for i in (4, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 0)]
    assert HeteroFL().widths(affordable, Fraction(1, 16)) == halves
    assert HeteroFL().widths([Fraction(1, 5), Fraction(3, 16)], Fraction(1, 5)) == [Fraction(1, 5)] * 2


def test_without_its_aids_equal_capacities_give_fedavg(make_task, play):
    ours = play(PLAIN, make_task(PLAIN, setting="ideal"), rounds=2).servers[-1]
    theirs = play(FedAvg(), make_task(FedAvg(), setting="ideal"), rounds=2).servers[-1]
    for k, v in theirs.items():
        torch.testing.assert_close(ours[k], v, rtol=0, atol=1e-9)


def test_entries_are_averaged_over_their_holders_and_others_keep_their_value(make_task, play):
    task = make_task(PLAIN, setting="list:1/4,1/16,1/16,1/256")
    played = play(PLAIN, task, rounds=2, per_round=3)
    for before, updates, after in zip(played.servers, played.rounds, played.servers[1:], strict=False):
        for k, old in before.items():
            want = old.clone()
            stack = torch.full((len(updates), *old.shape), torch.nan, dtype=old.dtype)
            for slot, u in zip(stack, updates, strict=True):
                leading(slot, u.tree[k].shape).copy_(u.tree[k])
            held = ~stack.isnan().all(0)
            want[held] = stack.nanmean(0)[held]  # the clients have equally many rows
            torch.testing.assert_close(after[k], want, rtol=0, atol=1e-12)
            assert torch.equal(after[k][~held], old[~held])
    first, last = played.servers[0], played.servers[-1]
    assert torch.equal(first["conv2.weight"][32:], last["conv2.weight"][32:])
    assert torch.equal(first["fc1.weight"][:, 128:], last["fc1.weight"][:, 128:])
    assert not torch.equal(first["conv2.weight"][:32, :16], last["conv2.weight"][:32, :16])


def test_clients_count_by_their_data(make_task):
    task = make_task(PLAIN, setting="ideal")
    server = {k: v.double() for k, v in PLAIN.init_server(task).items()}
    updates = [
        Update(task.clients[i], {k: torch.full_like(v, 3.0 * i) for k, v in server.items()}, n, {}, 0.0, 0)
        for i, n in ((0, 20), (1, 10))
    ]
    merged = PLAIN.aggregate(task, server, updates, 1)
    assert all(torch.allclose(v, torch.ones_like(v)) for v in merged.values())


@pytest.mark.parametrize("model", ["cnn-fashion", "resnet18-gn"])
def test_dividing_weights_is_dividing_outputs(make_task, model):
    method = HeteroFL(masked=False, divide="all")
    task = make_task(method, model=model)
    client = task.clients[1]
    theta, fixed = start(method, task, client)
    x, y = batch_of(task, client)
    network = task.model.factory(float(client.width), input_shape=(1, 8, 8), num_classes=4).double()
    network.load_state_dict(theta)
    layers = [m for n, m in network.named_modules() if hasattr(m, "weight") and "Norm" not in type(m).__name__
              and n != "head" and "shortcut" not in n]  # fmt: skip
    for m in layers:
        m.register_forward_hook(lambda module, given, out: out / float(client.width))
    want = F.cross_entropy(network(x), y)
    got = method.loss(task, client.width, theta, fixed, (x, y), {})
    assert got.item() == pytest.approx(want.item(), rel=1e-12)
    assert len(layers) == (4 if model == "cnn-fashion" else 17)


@pytest.mark.parametrize(("divide", "factor"), [("all", 4.0), ("root", 2.0)])
def test_only_encoder_layers_are_scaled_and_only_below_full_width(make_task, divide, factor):
    task = make_task(HeteroFL(), model="resnet18-gn")
    theta = {k: torch.ones(s) for k, s in task.model.shapes(Fraction(1, 4)).items()}
    for k, v in scaled(task, Fraction(1, 4), theta, divide).items():
        layer = "conv" in k and (divide == "all" or k != "conv1.weight")
        assert torch.equal(v, torch.full_like(v, factor if layer else 1.0)), k
    assert all(torch.equal(v, theta[k]) for k, v in scaled(task, Fraction(1), theta, divide).items())


def test_dividing_by_the_root_keeps_first_losses_similar(make_task):
    """√(1/p) = 4 for each of four layers, and for the first, which has all its inputs, 16: the first loss is large."""
    losses = {}
    for divide in ("root", "all"):
        method = HeteroFL(divide=divide, masked=False)
        task = make_task(method)
        for client in (task.clients[0], task.clients[3]):
            theta, fixed = start(method, task, client)
            batch = task.data.batch(task.data.rows(client.id, "train"), None, task.dtype)
            losses[divide, str(client.width)] = method.loss(task, client.width, theta, fixed, batch, {}).item()
    assert losses["root", "1"] == losses["all", "1"] < 5
    assert losses["root", "1/16"] < 5
    assert losses["all", "1/16"] > 50


def test_absent_classes_have_zero_logits_and_no_gradient(make_task):
    method = HeteroFL(scaler=False)
    task = make_task(method, partition="classes", classes_per_client=2)
    client = task.clients[0]
    theta, fixed = start(method, task, client)
    x, y = batch_of(task, client)
    owned = fixed[OWNED].bool()
    labels = task.data.y[task.data.rows(client.id, "train")]
    assert owned.nonzero().flatten().tolist() == labels.unique().tolist()
    assert int(owned.sum()) == 2
    theta = {k: v.requires_grad_() for k, v in theta.items()}
    logits = task.model(theta, x, client.width)
    want = F.cross_entropy(torch.where(owned, logits, torch.zeros_like(logits)), y)
    loss = method.loss(task, client.width, theta, fixed, (x, y), {})
    assert loss.item() == pytest.approx(want.item(), rel=1e-12)
    [gradient] = torch.autograd.grad(loss, [theta["head.weight"]])
    assert not gradient[~owned].any()
    assert gradient[owned].any()


def test_rows_of_absent_classes_are_left_out_of_the_average(make_task):
    method = HeteroFL()
    task = make_task(method, partition="classes", classes_per_client=2, setting="ideal")
    server = {k: v.double() for k, v in method.init_server(task).items()}
    old = {k: v.clone() for k, v in server.items()}
    masks = [[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0]]
    updates = [
        Update(
            task.clients[i],
            {OWNED: torch.tensor(mask).double()} | {k: torch.full_like(v, i + 1.0) for k, v in server.items()},
            n,
            {},
            0.0,
            0,
        )
        for i, (mask, n) in enumerate(zip(masks, (30, 10), strict=True))
    ]
    merged = method.aggregate(task, server, updates, 1)
    assert merged.keys() == old.keys()
    for name in ("head.weight", "head.bias"):
        rows = merged[name].view(4, -1)
        for row, value in ((0, 1.0), (1, 1.25), (3, 2.0)):
            assert torch.allclose(rows[row], torch.full_like(rows[row], value))
        assert torch.equal(merged[name][2], old[name][2])
    assert torch.allclose(merged["fc2.bias"], torch.full((128,), 1.25, dtype=torch.float64))


def test_the_mask_is_kept_and_sent_and_passes_the_guard(make_task, play):
    task = make_task(HeteroFL(), partition="classes", classes_per_client=2)
    played = play(HeteroFL(), task, rounds=2, per_round=4)
    for u in played.rounds[-1]:
        assert torch.equal(u.tree[OWNED], HeteroFL().init_client(task, u.client)[OWNED])
        assert torch.equal(played.private[u.client.id][OWNED], u.tree[OWNED])
    assert OWNED not in played.servers[-1]


def test_float32_resnet_takes_a_step_at_both_ends(make_task):
    method = HeteroFL()
    task = make_task(method, model="resnet18-gn", precision="fp32")
    task = replace(task, local=replace(task.local, batch=64))
    for client in (task.clients[0], task.clients[3]):
        theta, fixed = start(method, task, client)
        trained, loss = train(method, task, client, theta, fixed, 1, "train")
        assert loss > 0
        assert all(v.isfinite().all() and v.dtype == torch.float32 for v in trained.values())
    assert (task.clients[0].width, task.clients[3].width) == (1, Fraction(1, 16))


def test_costs_are_counted_without_data(make_task):
    task = make_task(HeteroFL())
    [record] = cost(HeteroFL(), task.model, task.p_min, 50, [Fraction(1, 2)])
    assert record["bytes_up"] - record["bytes_down"] == 4 * task.model.classes


def test_a_slice_is_tested_as_it_was_trained(make_task):
    """Four encoder layers at half width: dividing doubles the outputs of each, but not those of the head."""
    method = HeteroFL(divide="all")
    task = make_task(method)
    client = task.clients[1]
    server = {k: torch.ones_like(v) for k, v in method.init_server(task).items()}
    [down] = method.download(task, server, [client], 1)
    [tested] = method.personal(task, client.width, down, down, {}).values()
    factors = {k: float((tested[k] / down[k]).mean()) for k in down}
    assert factors == pytest.approx({k: 1.0 if k.startswith("head") else 2.0 for k in down})
