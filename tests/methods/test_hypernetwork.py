"""The hyper-network: what it generates, and that its in-place update is plain SGD on the paper's loss."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from pa3dfl.core.tree import Tree
from pa3dfl.methods.common.hypernetwork import HyperNetwork, Output

OUTPUTS = {"a": Output((4, 3, 5), 0.5), "b": Output((2, 6), 0.3), "head.bias": Output((7,), 0.0)}
# Two clients that hold everything, one that holds leading parts, one that was not sampled.
IDS = [0, 2, 3]
SHAPES: list[dict[str, tuple[int, ...]]] = [
    {"a": (4, 3, 5), "b": (2, 6), "head.bias": (7,)},
    {"a": (2, 3, 1), "b": (2, 3), "head.bias": (7,)},
    {"a": (4, 3, 5), "b": (2, 6), "head.bias": (7,)},
]


def network(clip_norm: float = 0.0, tau_min: float = 0.01, attention: bool = True) -> HyperNetwork:
    return HyperNetwork(OUTPUTS, 3, 8, 3, 0.2, tau_min, 0.7, 0.05, clip_norm, attention)


def state(hn: HyperNetwork) -> Tree:
    return {k: v.double() for k, v in hn.init(clients=5, seed=0).items()}


def trained(hn: HyperNetwork, tree: Tree) -> list[Tree]:
    g = torch.Generator().manual_seed(1)
    return [
        {k: v + torch.randn(v.shape, generator=g, dtype=v.dtype) for k, v in received.items()}
        for received in hn.generate(tree, IDS, SHAPES)
    ]


def copy(trees: list[Tree]) -> list[Tree]:
    return [{k: v.clone() for k, v in t.items()} for t in trees]


def test_generation_by_the_definition() -> None:
    hn = network()
    tree = state(hn)
    encoded = tree["embeddings"]
    for i in range(3):
        encoded = encoded @ tree[f"encoder.{i}.weight"].T + tree[f"encoder.{i}.bias"]
        encoded = encoded.clamp(min=0) if i < 2 else encoded
    encoded = torch.stack([e / e.norm() for e in encoded])
    [received] = hn.generate(tree, [2], [SHAPES[1]])
    for at, (name, out) in enumerate(OUTPUTS.items()):
        weights = torch.tensor([float(e @ encoded[2] / tree["tau"][at]) for e in encoded]).double().softmax(0)
        mix: Tensor = sum(w * e for w, e in zip(weights, encoded, strict=True))  # type: ignore[assignment]
        full = (tree[f"decoder.{name}.weight"] @ mix + tree[f"decoder.{name}.bias"]).view(out.shape)
        assert received[name].shape == SHAPES[1][name]
        kept = full[tuple(slice(n) for n in SHAPES[1][name])]
        torch.testing.assert_close(received[name], kept, rtol=0, atol=1e-6)


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("clip_norm", [0.0, 1e6, 0.5])
def test_update_in_place_is_autograd_and_sgd(clip_norm: float, attention: bool) -> None:
    hn = network(clip_norm, attention=attention)
    tree = state(hn)
    targets = trained(hn, tree)
    gradient = hn.gradient(tree, IDS, targets)
    norm = float(torch.cat([g.flatten() for g in gradient.values()]).norm())
    scale = min(1.0, clip_norm / norm) if clip_norm else 1.0
    assert (scale < 1) == (clip_norm == 0.5), "the three cases must be no limit, a loose one, a tight one"
    rates = {k: 0.7 if k.startswith("decoder.") else 0.05 for k in tree}
    expected = {k: v - rates[k] * scale * gradient[k] for k, v in tree.items()}
    found = hn.update(tree, IDS, copy(targets))
    assert found == pytest.approx(norm, rel=1e-9)
    for k in tree:
        torch.testing.assert_close(tree[k], expected[k], rtol=0, atol=1e-6)


def test_clients_that_were_not_sampled_move_too() -> None:
    """All embeddings take part in every mix, so that all receive gradient."""
    hn = network()
    tree = state(hn)
    before = tree["embeddings"].clone()
    hn.update(tree, IDS, trained(hn, tree))
    moved = (tree["embeddings"] - before).norm(dim=1)
    assert (moved > 1e-8).all(), moved


def test_pruned_entries_give_no_gradient() -> None:
    """Entries that no sampled client holds do not change."""
    hn = network()
    tree = state(hn)
    targets = [t for i, t in zip(IDS, trained(hn, tree), strict=True) if i == 2]
    before = tree["decoder.a.bias"].clone().view(4, 3, 5)
    hn.update(tree, [2], targets)
    moved = tree["decoder.a.bias"].view(4, 3, 5) != before
    assert moved[:2, :, :1].all()
    assert not moved[2:].any()
    assert not moved[:, :, 1:].any()


def test_temperatures_stay_above_their_floor() -> None:
    hn = network(tau_min=0.1999999)
    tree = state(hn)
    targets = trained(hn, tree)
    falls = hn.gradient(tree, IDS, targets)["tau"] > 0
    assert falls.any(), "no temperature would fall: the test needs another seed"
    hn.update(tree, IDS, targets)
    assert (tree["tau"][falls] == 0.1999999).any()
    assert (tree["tau"] >= 0.1999999).all()


def megabytes_more(statements: str) -> float:
    """The peak memory of the last statement, in a process of its own."""
    before, last = statements.strip().rsplit("\n", 1)
    program = f"""
import resource, torch
from pa3dfl.methods.common.hypernetwork import HyperNetwork, Output
torch.set_num_threads(1)
{before}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{last}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return int(out.stdout) / 1000


def test_an_update_never_holds_the_gradient() -> None:
    """The decoder's gradient would be as large as the decoder, 205 MB here: it is never made."""
    more = megabytes_more("""
hn = HyperNetwork({"a": Output((400_000,), 0.1)}, 4, 128, 2, 0.2, 0.1, 1.0, 0.1, 50.0)
tree = hn.init(clients=6, seed=0)
trained = [{"a": torch.zeros(400_000)} for _ in range(4)]
hn.update(tree, [0, 1, 2, 3], trained)
""")
    assert more < 100


def test_attention_of_many_clients_is_never_stored_in_full() -> None:
    """Weights of 800 among 100,000 would be 320 MB, and as much again for their gradient."""
    more = megabytes_more("""
hn = HyperNetwork({"a": Output((1,), 0.1)}, 4, 4, 2, 0.2, 0.1, 1.0, 0.1, 50.0)
tree = hn.init(clients=100_000, seed=0)
trained = [{"a": torch.zeros(1)} for _ in range(800)]
hn.update(tree, list(range(800)), trained)
""")
    assert more < 100


@pytest.mark.parametrize(
    ("device", "dtype", "atol"),
    [
        ("cpu", torch.float64, 1e-12),
        pytest.param(
            "cuda", torch.float32, 1e-5, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
        ),
    ],
)
def test_attention_in_blocks_equals_attention_at_once(
    device: str, dtype: torch.dtype, atol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without stored attention weights, the models and the step are the same."""
    hn = network(clip_norm=1.0)
    expected, tree = ({k: v.to(device, dtype) for k, v in state(hn).items()} for _ in range(2))
    whole = hn.generate(tree, IDS, SHAPES)
    goal = [{k: torch.full_like(v, 2.0) for k, v in mine.items()} for mine in whole]
    norm = hn.update(expected, IDS, copy(goal))
    monkeypatch.setattr("pa3dfl.methods.common.hypernetwork.ATTENTION", 0)
    for a, b in zip(hn.generate(tree, IDS, SHAPES), whole, strict=True):
        for k in a:
            torch.testing.assert_close(a[k], b[k], rtol=0, atol=atol)
    assert hn.update(tree, IDS, copy(goal)) == pytest.approx(norm, rel=atol)
    for k, v in expected.items():
        torch.testing.assert_close(tree[k], v, rtol=0, atol=atol)
