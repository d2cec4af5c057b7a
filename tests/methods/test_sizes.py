"""|θ_i|: closed forms, what is counted on the wire, and the strict rule that follows from it."""

import csv
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import make_arrays
from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.core.options.capacity import candidate_widths, width_of
from pa3dfl.engines import Round
from pa3dfl.engines.sequential import Sequential
from pa3dfl.experiments import api
from pa3dfl.methods import assembly
from pa3dfl.methods.sizes import full_size, held, held_at, strict_widths
from pa3dfl.models import Model

Make = Callable[..., Any]
SIXTEENTH = Fraction(1, 16)
FULL = 832 + 51_264 + 1_606_144 + 65_664 + 1_290
NAMES = list(methods.registry())
SLICES = ("ditto", "fedavg", "fedrolex", "fjord", "heterofl", "local-only", "pfedhn", "tailorfl")
STRICT = [n for n in NAMES if n != "pfedgate"]


def model_of(name: str) -> Model:
    return assembly.make_model("cnn-fashion", methods.find(name), (1, 28, 28), 10, SIXTEENTH)


MODELS = {name: model_of(name) for name in NAMES}


def size(name: str, width: Fraction) -> int:
    return held_at(methods.find(name)(), MODELS[name], SIXTEENTH, width)


# The Fashion CNN: (outputs, inputs, taps) of its layers at full width; 49 pixels feed fc1.
CONV1, CONV2, FC1, FC2 = (32, 1, 25), (64, 32, 25), (512, 64 * 49, 1), (128, 512, 1)


def sliced(p: Fraction) -> Fraction:
    layers = ((32, 1 / p, 25), (64, 32, 25), (512, 3136, 1), (128, 512, 1), (10 / p, 128, 1))
    return sum((p * t * p * s * taps + p * t for t, s, taps in layers), Fraction(0))


def local_heads(p: Fraction) -> Fraction:
    """LG-FedAvg: the last encoder layer at full output below a head of one size."""
    return (
        32 * p * 25 + 32 * p + 64 * p * 32 * p * 25 + 64 * p + 512 * p * 3136 * p + 512 * p + 128 * 512 * p + 128 + 1290
    )


def decomposed(p: Fraction) -> Fraction:
    """Pa3dFL: θ_u (R1·k² × R2) whole, θ_v (T/R1 blocks of R2 × S) pruned, biases, local head."""
    total = 32 * p + 64 * p + 512 * p + 128 + 1290
    for (T, S, taps), t, s in ((CONV1, p, 1), (CONV2, p, p), (FC1, p, p), (FC2, 1, p)):
        R1 = T * SIXTEENTH
        R2 = R1 if taps == 1 else max(S, T, taps)
        total += R1 * taps * R2 + (t * T / R1) * R2 * (s * S)
    return total


def composed(p: Fraction) -> Fraction:
    """FLANC: a bank of T/4 filters over R1 inputs, coefficients over the groups, a plain head."""
    total = 128 * p * 10 + 10
    for (T, S, taps), s in ((CONV1, 1), (CONV2, p), (FC1, p), (FC2, p)):
        R1, R2 = (S if S == 1 else S * SIXTEENTH), Fraction(T, 4)
        total += R2 * R1 * taps + p * T * (s * S / R1) * R2
    return total


FORMS = {**dict.fromkeys(SLICES, sliced), "lg-fedavg": local_heads, "pa3dfl": decomposed, "flanc": composed}


@pytest.mark.parametrize("name", FORMS)
def test_closed_forms(name: str) -> None:
    own = methods.find(name)()
    for width in sorted({own.widths([w], SIXTEENTH)[0] for w in (SIXTEENTH, Fraction(3, 8), Fraction(1))}):
        assert size(name, width) == FORMS[name](width)
    assert full_size(MODELS[name]) == FULL == 1_725_194


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [("fedavg", "1/16", 6_914), ("fedavg", "1", FULL), ("pa3dfl", "1/16", 21_072), ("flanc", "1/16", 31_634),
     ("lg-fedavg", "1/16", 12_074)],
)  # fmt: skip
def test_sizes_by_hand(name: str, width: str, expected: int) -> None:
    assert size(name, Fraction(width)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_counted_parameters_equal_those_sent_and_kept(name: str, make_task: Make) -> None:
    """p² ≤ r for each client; counts without data, with data and from the bytes received are equal."""
    method = methods.find(name)()
    task = make_task(method, setting="list:1,1/4,9/256,1/256", precision="fp32")
    server = method.init_server(task)
    private = {c.id: method.init_client(task, c) for c in task.clients}
    work = Round(method, task, server, private, task.clients, 1, sent={})
    for client, update in zip(task.clients, Sequential().train(work), strict=True):
        if name != "pfedgate":  # masks a model of full width
            assert client.width**2 <= client.r
        counted = held(method, task, client, work.sent[client.id])
        assert counted == held_at(method, task.model, task.p_min, client.width)
        if name not in ("local-only", "lg-fedavg", "pfedgate", "pfedhn"):  # these keep layers or a gate to themselves
            assert 4 * counted == update.bytes_down
        else:
            assert 4 * counted == update.bytes_down + sum(4 * v.numel() for v in private[client.id].values())


def test_shares_are_in_the_table_of_clients(tmp_path: Path) -> None:
    arrays = make_arrays(240, classes=10, shape=(1, 28, 28))
    np.savez(tmp_path / "tiny.npz", x=arrays.x, y=arrays.y)
    api.run(
        method="fedavg", data=str(tmp_path / "tiny.npz"), clients=2, setting="list:1/256,1", rounds=1, epochs=1,
        threads=1, device="cpu", out=str(tmp_path / "run"),
    )  # fmt: skip
    with (tmp_path / "run" / "clients.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert [(float(r["r"]), r["width"], float(r["share"])) for r in rows] == [
        (1 / 256, "1/16", 6_914 / FULL), (1.0, "1/16", 6_914 / FULL),
    ]  # fmt: skip


# --- the strict rule ---


@pytest.mark.parametrize(
    ("name", "r", "widths"),
    [
        # 6,914 parameters are 0.4008% of the model: more than the 1/256 that the width stands for.
        ("fjord", ["1", "1/4", "0.005"], ["1", "7/16", "1/16"]),
        ("heterofl", ["1", "1/4", "0.005"], ["1", "1/4", "1/16"]),
        ("fedavg", ["1", "1/4", "0.02"], ["1/8", "1/8", "1/8"]),
        # 99.44% at width 1, 26.28% at 1/2, 1.22% at 1/16
        ("pa3dfl", ["1", "0.99", "0.26", "0.013"], ["1", "15/16", "7/16", "1/16"]),
        # 67.19% at width 1: its factors are smaller than the model
        ("flanc", ["0.68", "0.02"], ["1", "1/16"]),
    ],
)
def test_strict_widths_are_the_widest_that_fit(name: str, r: list[str], widths: list[str]) -> None:
    given = strict_widths(methods.find(name)(), MODELS[name], SIXTEENTH, [Fraction(x) for x in r])
    assert given == [Fraction(w) for w in widths]


@pytest.mark.parametrize("name", STRICT)
def test_no_client_holds_more_than_its_capacity(name: str) -> None:
    method, model = methods.find(name)(), MODELS[name]
    sizes = {w: size(name, w) for w in {method.widths([w], SIXTEENTH)[0] for w in candidate_widths(SIXTEENTH)}}
    least = Fraction(min(sizes.values()), FULL)

    @settings(max_examples=20, deadline=None, derandomize=True)
    @given(st.lists(st.integers(math.ceil(least * FULL), FULL), min_size=1, max_size=5))
    def check(affordable: list[int]) -> None:
        fits = [Fraction(n, FULL) for n in affordable]
        given = strict_widths(method, model, SIXTEENTH, fits)
        for own, width in zip(fits, given, strict=True):
            assert sizes[width] <= own * FULL
        # Somebody could not have been any wider: the poorest, on whom methods of one width for all depend.
        poorest = min(range(len(fits)), key=fits.__getitem__)
        wider = [w for w in sizes if w > given[poorest]]
        assert all(sizes[w] > fits[poorest] * FULL for w in wider)

    check()


@given(st.fractions(Fraction(1, 256), 1))
def test_the_usual_rule_keeps_squares_within_capacity(r: Fraction) -> None:
    assert width_of(r, SIXTEENTH) ** 2 <= r


@pytest.mark.parametrize(
    ("name", "r", "complaint"),
    [
        ("fedavg", ["1", "1/256"], "no width of fedavg fits client 1: it affords 1/256 of 1,725,194 parameters, and at "
         "width 1/16 it would hold 6,914; it would need r of at least 0.41%; change --setting or --p-min, or use"),
        ("pa3dfl", ["0.01"], "no width of pa3dfl fits client 0: it affords 1/100 of 1,725,194 parameters, and at width "
         "1/16 it would hold 21,072; it would need r of at least 1.23%"),
        ("pfedgate", ["1"], "it would hold 1,764,502; even r = 100% would not suffice"),
    ],
)  # fmt: skip
def test_an_error_names_the_client_that_no_width_fits(name: str, r: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=re.escape(complaint)):
        strict_widths(methods.find(name)(), MODELS[name], SIXTEENTH, [Fraction(x) for x in r])


def test_a_run_by_the_strict_rule(make_task: Make) -> None:
    method = methods.find("pa3dfl")()
    given = {"setting": "list:1,1/4,1/4,1/8", "arrays": make_arrays(160, classes=10, shape=(1, 28, 28))}
    usual, strict = make_task(method, **given), make_task(method, **given, capacity_rule="strict")
    assert [str(c.width) for c in usual.clients] == ["1", "1/2", "1/2", "5/16"]
    assert [str(c.width) for c in strict.clients] == ["1", "7/16", "7/16", "5/16"]
    with pytest.raises(UserError, match=r"^capacity_rule is 'loose': expected one of width, strict"):
        make_task(method, capacity_rule="loose")
