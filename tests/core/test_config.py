"""Values of a run: one line for every one that cannot be."""

import dataclasses
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config, read_yaml, resolve
from pa3dfl.core.options.schema import coerce
from pa3dfl.methods import assembly

PA3DFL = assembly.option_fields(methods.find("pa3dfl"))


def one_line(complaint: str, **given: Any) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        resolve(given, PA3DFL)
    assert "\n" not in str(caught.value)


# --- what cannot be ---


@pytest.mark.parametrize(
    ("key", "meant"),
    [("round", "rounds"), ("zzz", None), ("clients_", "clients"), ("Seed", "seed"), ("embeding", "embedding"),
     ("per-round", "per_round"), (1, None), (True, None)],
)  # fmt: skip
def test_an_unknown_key_is_named_with_a_suggestion(key: Any, meant: str | None) -> None:
    for value in (3, None):
        with pytest.raises(UserError) as caught:
            resolve({key: value}, PA3DFL)
        hint = f"did you mean {meant}?" if meant else "see `pa3dfl run --help`"
        assert str(caught.value) == f"unknown option {key!r}: {hint}"


def test_an_option_of_another_method_is_unknown() -> None:
    with pytest.raises(UserError, match=r"^unknown option 'embedding'"):
        resolve({"method": "fedavg", "embedding": 3}, assembly.option_fields(methods.find("fedavg")))


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("rounds", 0, "rounds is 0: expected at least 1"),
        ("clients", -1, "clients is -1: expected at least 1"),
        ("per_round", 0, "per_round is 0: expected at least 1"),
        ("epochs", 0, "epochs is 0: expected at least 1"),
        ("batch", 0, "batch is 0: expected at least 1"),
        ("eval_every", 0, "eval_every is 0: expected at least 1"),
        ("checkpoint_every", 0, "checkpoint_every is 0: expected at least 1"),
        ("classes_per_client", 0, "classes_per_client is 0: expected at least 1"),
        ("threads", -1, "threads is -1: expected at least 0"),
        ("threads", 1025, "threads is 1025: expected at most 1024"),
        ("seed", -1, "seed is -1: expected at least 0"),
        ("lr", 0, r"lr is 0\.0: expected a number above 0"),
        ("lr", "inf", "lr is inf: expected a finite number"),
        ("lr", "nan", "lr is 'nan': expected a number"),
        ("lr_decay", -0.5, r"lr_decay is -0\.5: expected a number above 0"),
        ("dirichlet_alpha", 0, r"dirichlet_alpha is 0\.0: expected a number above 0"),
        ("patience", 0, r"patience is 0\.0: expected a number above 0"),
        ("weight_decay", -1, r"weight_decay is -1\.0: expected at least 0"),
        ("clip_norm", "-1", r"clip_norm is -1\.0: expected at least 0"),
        ("clip_norm", "inf", "clip_norm is inf: expected a finite number"),
        ("partition", "random", "partition is 'random': expected one of iid, dirichlet, classes, natural"),
        ("select", "f1", "select is 'f1': expected one of accuracy, loss"),
        ("engine", "fast", "engine is 'fast': expected one of auto, sequential, threaded, captured"),
        ("precision", "fp16", "precision is 'fp16': expected one of auto, fp32, tf32, bf16, fp64"),
        ("p_min", "0", r"p_min 0 is outside \(0, 1\]"),
        ("p_min", "2", r"p_min 2 is outside \(0, 1\]"),
        ("p_min", "3/16", "p_min is 3/16: expected 1 over a whole number, such as 1/16"),
        ("p_min", "wide", "p_min 'wide' is not a number"),
        ("rounds", "ten", "rounds is 'ten': expected a whole number"),
        ("rounds", 2.5, r"rounds is 2\.5: expected a whole number"),
        ("rounds", True, "rounds is True: expected a whole number"),
        ("rounds", [1], r"rounds is \[1\]: expected a whole number"),
        ("seed", "1e400", "seed is '1e400': expected a whole number"),
        ("lr", {}, r"lr is \{\}: expected a number"),
        ("lr", "", "lr is '': expected a number"),
        ("lr", 10**400, "expected a number$"),
        ("augment", "maybe", "augment is 'maybe': expected true or false"),
        ("augment", 1, "augment is 1: expected true or false"),
        ("data", ["a"], r"data is \['a'\]: expected text"),
        ("setting", {"a": 1}, r"setting is \{'a': 1\}: expected text"),
        ("embedding", "x", "embedding is 'x': expected a whole number"),
        ("tau", "x", "tau is 'x': expected a number"),
    ],
)
def test_an_impossible_value_is_one_line(key: str, value: Any, complaint: str) -> None:
    one_line(f"^{complaint}" if not complaint.endswith("$") else complaint, **{key: value})
    if key not in PA3DFL:  # and the same from Python
        with pytest.raises(UserError, match=complaint):
            Config(**{key: value})


def test_a_config_from_python_holds_its_types() -> None:
    c = Config(rounds="10", p_min=Fraction(1, 4), lr=1, augment="yes", seed=5.0)  # type: ignore[arg-type]
    assert (c.rounds, c.p_min, c.lr, c.augment, c.seed) == (10, "1/4", 1.0, True, 5)
    assert isinstance(c.seed, int)
    with pytest.raises(UserError, match=r"^epochs is None: expected a whole number"):
        Config(epochs=None)  # type: ignore[arg-type]


def test_values_at_the_limits_are_allowed() -> None:
    c = Config(rounds=1, clients=1, per_round=1, threads=0, seed=0, weight_decay=0, clip_norm=0, patience=1, p_min="1")
    assert c.narrowest() == 1
    assert Config(p_min="6.25%").narrowest() == Fraction(1, 16)


@pytest.mark.parametrize("name", ["auto:0", "gpu", "cuda:1", "meta", "", "CPU"])
def test_unknown_devices(name: str) -> None:
    with pytest.raises(UserError, match=f"^unknown device '{name}': expected auto, cpu or cuda"):
        assembly.device_of(name)


# --- coerce, hash, files ---


@given(st.integers(-(10**30), 10**30))
def test_whole_numbers_keep_all_digits(n: int) -> None:
    assert coerce("seed", n, int) == coerce("seed", str(n), int | None) == n


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_conversion_to_text_and_back(x: float) -> None:
    assert coerce("lr", repr(x), float) == x
    assert isinstance(coerce("lr", 3, float), float)


@pytest.mark.parametrize(
    ("value", "kind", "result"),
    [("true", bool, True), ("No", bool, False), (False, bool | None, False), (None, bool | None, None),
     ("1e3", int, 1000), (4.0, int, 4), (1, str, "1"), (0.5, str | None, "0.5"), ("nan", str, "nan"),
     ("7", int | None, 7)],
)  # fmt: skip
def test_coerce(value: Any, kind: Any, result: Any) -> None:
    out = coerce("x", value, kind)
    assert out == result
    assert type(out) is type(result)


def test_coerce_lists_the_expected_types() -> None:
    with pytest.raises(UserError, match=r"^x is 'a': expected a whole number or true or false$"):
        coerce("x", "a", int | bool)
    assert coerce("x", math.inf, float) == math.inf


def test_hash_covers_the_options_that_change_results() -> None:
    c = Config()
    same = {"out": "x", "data_dir": "y", "checkpoint_every": 9}
    assert dataclasses.replace(c, **same).hash() == c.hash()  # type: ignore[arg-type]
    others = [{"seed": 1}, {"lr": 0.2}, {"options": {"tau": 1}}, {"threads": 2}, {"precision": "fp64"}, {"rounds": 3}]
    assert len({c.hash(), *(dataclasses.replace(c, **o).hash() for o in others)}) == 7  # type: ignore[arg-type]
    assert len(c.hash()) == 12


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "must be a mapping of option: value$"),
        (b"- a\n- b\n", "must be a mapping of option: value$"),
        (b"rounds\n", "must be a mapping of option: value$"),
        (b"a: [1\nb: 2\n", "is not YAML: while parsing a flow sequence"),
        (b"a: b: c\n", "is not YAML: mapping values are not allowed here"),
        (b"\xff\xfe\x00", "is not YAML: "),
        (b"day: 2026-13-45\n", "is not YAML: month must be in 1..12"),
        (b"a: !!python/object:os.system {}\n", "is not YAML: could not determine a constructor"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=complaint) as caught:
        read_yaml(file)
    assert str(caught.value).startswith(f"config {file} ")
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run\.yaml cannot be read: No such file or directory$"):
        read_yaml(tmp_path / "run.yaml")
    with pytest.raises(UserError, match=r"cannot be read: Is a directory$"):
        read_yaml(tmp_path)


def test_a_file_may_hold_options_by_method() -> None:
    """One file serves several methods with different options."""
    shared = {"data": "cifar100", "methods": {"pa3dfl": {"hidden": 8, "ideal": {"lr": 0.3}}, "ditto": {"mu": 0.5}}}
    assert assembly.configure({**shared, "method": "pa3dfl"}).options["hidden"] == 8
    assert assembly.configure({**shared, "method": "pa3dfl", "setting": "ideal"}).lr == 0.3
    assert assembly.configure({**shared, "method": "ditto"}).options == {"mu": 0.5}
    assert assembly.configure({**shared, "method": "ditto", "mu": 2}).options == {"mu": 2.0}
    for wrong in ([1], {"ditto": 3}, {"ditto": {"hetero": 1}}):
        with pytest.raises(UserError, match="methods must map each method to its options"):
            assembly.configure({"method": "ditto", "methods": wrong})
    with pytest.raises(UserError, match="unknown option 'hidden'"):
        assembly.configure({"method": "ditto", "methods": {"ditto": {"hidden": 8}}})
