"""`pa3dfl cost` of recurrent networks and attention: what torch's counter finds in the plain network."""

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pa3dfl.models.registry import factory_of
from workspace import Capture, printed

OWN = Path(__file__).parents[1] / "models" / "sequences.py"
BATCH, TOKENS, CLASSES = 3, 6, 4
WIDTHS = ("1/2", "1")


def recurrent(h: int, gates: int, layers: int) -> int:
    """A gate takes one product with the inputs and one with the state."""
    return TOKENS * layers * gates * 2 * h * h + h * CLASSES


def attention(e: int, positions: int, depth: int, entries: int = 0) -> int:
    """Four projections, two layers of 2e, scores and their product with the values; `entries` go into a position."""
    return positions * e * entries + depth * (positions * 8 * e * e + 2 * positions * positions * e) + e * CLASSES


CASES = {
    "lstm-text": ((TOKENS,), lambda p: recurrent(int(128 * p), 4, 2)),
    f"{OWN}:gru": ((TOKENS,), lambda p: recurrent(int(16 * p), 3, 1)),
    f"{OWN}:rnn": ((TOKENS,), lambda p: recurrent(int(16 * p), 1, 1)),
    "transformer-text": ((TOKENS,), lambda p: attention(int(128 * p), TOKENS, 2)),
    "transformer-sensor": ((2, 32), lambda p: attention(int(64 * p), 4, 2, 2 * 8)),
    "vit-small": ((3, 8, 8), lambda p: attention(int(128 * p), 4, 4, 3 * 4 * 4)),
}


@contextlib.contextmanager
def counter() -> Iterator[FlopCounterMode]:
    """It has no formula for the fused kernels of a CPU: without them, LSTMs and attention are products of matrices."""
    with (
        torch.backends.mkldnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counting,
    ):
        yield counting


def counted(network: nn.Module, x: Tensor) -> int:
    with counter() as counting:
        network(x)
    return int(counting.get_total_flops()) // 2


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
@pytest.mark.parametrize("name", CASES, ids=lambda name: name.rpartition(":")[2])
def test_cost_of_a_sequence_network_equals_torchs_flop_counter(name: str, capsys: Capture) -> None:
    """The count for the factory's network, run on numbers, and by the formula."""
    shape, formula = CASES[name]
    flags = ("--input-shape", ",".join(map(str, shape)), "--classes", str(CLASSES), "--batch", str(BATCH))
    ratios = [f for w in WIDTHS for f in ("--width", w)]
    records = printed(capsys, "cost", "--model", name, "--method", "fedavg", "--p-min", "1/2", *flags, *ratios)
    assert [r["width"] for r in records] == list(WIDTHS)
    for r in records:
        width = float(Fraction(r["width"]))
        make = factory_of(name)
        network = make(width) if ":" in name else make(width, input_shape=shape, num_classes=CLASSES)
        x = torch.randn(BATCH, *shape) if len(shape) > 1 else torch.randint(1, 12, (BATCH, *shape))
        assert r["step_multiply_adds"] == counted(network, x) == BATCH * formula(width)
        assert r["encoder_multiply_adds"] == r["step_multiply_adds"] - BATCH * network.head.weight.numel()
