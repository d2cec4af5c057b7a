"""How networks start: one rule for all layers, heads and methods."""

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
import torch
from networks import ONE, PAPER, SHAPES, own, perceptron
from torch import Tensor, nn

from conftest import build
from pa3dfl import methods
from pa3dfl.deploy import tasks
from pa3dfl.methods import assembly
from pa3dfl.methods.problem import Task
from pa3dfl.models import Model, factory_of

QUARTER = Fraction(1, 4)
VARIANCE = {"he": 2.0, "pytorch": 1 / 3}
HEAD_VARIANCE = {"he": 1.0, "pytorch": 1 / 3}


def network(name: str, rule: str) -> Model:
    return Model(factory_of(name), name, *SHAPES[name], rule=rule)


def deviations(n: int) -> float:
    """Five standard errors of a variance from n normal draws, relative."""
    return 5 * math.sqrt(2 / n)


@pytest.mark.parametrize("rule", ["he", "pytorch"])
@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("width", [ONE, QUARTER])
def test_every_layer_has_the_variance_of_its_rule(name: str, rule: str, width: Fraction) -> None:
    model = network(name, rule)
    params = model.init(width, 3)
    for layer in (*model.layers, model.head):
        weight, bias = params[f"{layer}.weight"], params.get(f"{layer}.bias")
        fan_in = weight[0].numel()
        expected = (HEAD_VARIANCE if layer == model.head else VARIANCE)[rule] / fan_in
        assert weight.square().mean().item() == pytest.approx(expected, rel=deviations(weight.numel())), layer
        if rule == "pytorch":
            assert weight.abs().max() <= fan_in**-0.5
        if bias is not None:
            assert (bias.abs().max() > 0) == (rule == "pytorch")
            assert bias.abs().max() <= fan_in**-0.5
    norms = {k: v for k, v in params.items() if k.rpartition(".")[0] not in (*model.layers, model.head)}
    assert bool(norms) == (name == "resnet18-gn")
    assert all(torch.equal(v, torch.full_like(v, float(k.endswith("weight")))) for k, v in norms.items())


def test_the_rule_pytorch_equals_pytorchs_default() -> None:
    """Its own layers, drawn by themselves, have the variance that is claimed of them."""
    for layer in (nn.Conv2d(16, 64, 5), nn.Linear(400, 200)):
        fan_in = layer.weight[0].numel()
        expected = pytest.approx(1 / (3 * fan_in), rel=deviations(layer.weight.numel()))
        assert layer.weight.detach().square().mean().item() == expected
        assert layer.bias is not None
        assert layer.bias.abs().max() <= fan_in**-0.5


def test_layers_are_drawn_from_keys_of_their_own() -> None:
    model = network("cnn-cifar100", "he")
    one, again, other = (model.init(QUARTER, seed) for seed in (1, 1, 2))
    assert all(torch.equal(v, again[k]) for k, v in one.items())
    assert not any(torch.equal(v, other[k]) for k, v in one.items() if k.endswith("weight"))
    first, second = (one[f"{k}.weight"].flatten()[:1000] for k in ("conv1", "fc1"))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.1


class Mixed(nn.Module):
    """A layer that is known, and parameters that are not."""

    def __init__(self, width: float) -> None:
        super().__init__()
        h = int(16 * width)
        self.known = nn.Linear(6, h)
        self.table = nn.Parameter(torch.full((h,), 0.7))
        self.norm = nn.LayerNorm(h)
        nn.init.constant_(self.norm.weight, 0.3)
        self.head = nn.Linear(h, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.known(x) * self.table))


def test_other_parameters_keep_the_factorys_values() -> None:
    params = own(Mixed).init(QUARTER, 0)
    assert torch.equal(params["table"], torch.full((4,), 0.7))
    assert torch.equal(params["norm.weight"], torch.full((4,), 0.3))
    assert not params["known.bias"].any()


class Tied(nn.Module):
    def __init__(self, width: float) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.first.weight
        self.free, self.head = nn.Linear(6, int(8 * width)), nn.Linear(int(8 * width), 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.free(self.again(self.first(x))))


def test_a_tied_layer_starts_as_the_one_it_is_tied_to() -> None:
    params = own(Tied).init(QUARTER, 0)
    assert params.keys() == {
        "first.weight", "first.bias", "again.bias", "free.weight", "free.bias", "head.weight", "head.bias"
    }  # fmt: skip


def test_widened_layers_start_by_the_rule_too() -> None:
    params = own(perceptron, full_features=True).init(QUARTER, 0)
    assert params["2.weight"].shape == (32, 4)
    assert params["2.weight"].square().mean().item() == pytest.approx(2 / 4, rel=deviations(128))
    assert params["4.weight"].square().mean().item() == pytest.approx(1 / 32, rel=deviations(128))


# --- methods: what a client starts with, whatever the method makes of it ---

# Every width has weights of its own, or there is one width; TailorFL divides by √p.
OWN_WIDTH = {"local-only", "lg-fedavg", "flanc", "ditto", "fedavg", "pfedhn", "tailorfl"}


def started(name: str, rule: str, r: str) -> tuple[Task, dict[str, Tensor], dict[str, Tensor]]:
    """A task of one width, the plain weights that a client starts with, and the whole of what it trains."""
    method = methods.find(name)()
    task = build(method, setting=f"list:{r},{r},{r},{r}", init=rule, precision="fp32")
    client = task.clients[0]
    [down] = method.download(task, method.init_server(task), [client], 1)
    theta, fixed = method.begin(task, client, down, method.init_client(task, client))
    return task, method.weights(task, client.width, theta, fixed), theta


@pytest.mark.parametrize("rule", ["he", "pytorch"])
@pytest.mark.parametrize("r", ["1", "1/16"])
@pytest.mark.parametrize("name", sorted(methods.registry()))
def test_all_methods_start_by_the_same_rule(name: str, rule: str, r: str) -> None:
    """By the fan-in of the client's own layer, or by that of the full layer where all widths share its weights.

    HeteroFL and TailorFL divide what they share by √p, which is the same as the own fan-in.
    """
    task, weights, theta = started(name, rule, r)
    full = task.model.shapes(ONE)
    for layer in (*task.model.layers, task.model.head):
        k = f"{layer}.weight"
        if layer == task.model.head and name == "pa3dfl":  # the local head is apart from the plain encoder
            weights[k] = theta["theta_v/head.weight"]
        own_fan, fan = weights[k][0].numel(), math.prod(full[k][1:])
        head = HEAD_VARIANCE if layer == task.model.head else VARIANCE
        of_its_own = name in OWN_WIDTH or (name == "heterofl" and layer != task.model.head)
        expected = math.sqrt(head[rule] / (own_fan if of_its_own else fan))
        if name == "pfedgate":
            expected *= 2  # its gate halves them
        if name == "pa3dfl" and layer == "fc2":
            expected /= math.log(task.model.classes)
        got = weights[k].std().item()
        # Decomposed weights are products with few factors, and TailorFL keeps the heaviest early channels.
        loose = 0.15 if name in ("pa3dfl", "flanc", "pfedhn", "tailorfl") else 0.0
        assert got == pytest.approx(expected, rel=5 / math.sqrt(2 * weights[k].numel()) + loose), layer


@pytest.mark.parametrize("make", [perceptron, Mixed])
def test_threads_that_start_networks_at_once_do_not_disturb_each_other(make: type[Mixed]) -> None:
    """Like engines with several threads; a factory draws from the generator that all threads share."""
    model = own(make)
    alone = model.init(QUARTER, 5)
    with ThreadPoolExecutor(4) as pool:
        for params in pool.map(lambda _: model.init(QUARTER, 5), range(40)):
            assert all(torch.equal(v, alone[k]) for k, v in params.items())


@pytest.mark.parametrize("rule", ["he", "pytorch"])
def test_biases_of_local_heads_follow_the_rule(rule: str) -> None:
    for name, k in (("pa3dfl", "theta_v/head.bias"), ("lg-fedavg", "head.bias"), ("pfedhn", "head.bias")):
        _, _, theta = started(name, rule, "1")
        assert bool(theta[k].any()) == (rule == "pytorch"), name


def test_nodes_of_a_deployment_start_by_the_rule_of_the_config() -> None:
    config = assembly.configure({"model": "cnn-fashion", "init": "pytorch", "device": "cpu", "method": "local-only"})
    method, common = assembly.make_method(config), tasks.Common((1, 28, 28), 10, None, None)
    task = tasks._task(config, method, common, [], build(method).data, torch.device("cpu"))
    assert task.model.rule == "pytorch"


def test_the_rule_is_part_of_the_configs_hash() -> None:
    he, torchs = (assembly.configure({"init": rule}) for rule in ("he", "pytorch"))
    assert assembly.configure({}).init == "he"
    assert he.hash() == assembly.configure({}).hash() != torchs.hash()
