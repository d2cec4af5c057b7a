"""From a setting to capacities, and from a capacity to a width."""

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.capacity import capacities, default_p_min, parse_ratio, width_of

SIXTEENTH = Fraction(1, 16)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.25", Fraction(1, 4)), ("1/16", SIXTEENTH), ("25%", Fraction(1, 4)), (" 1 ", Fraction(1)),
        ("100%", Fraction(1)), ("6.25%", SIXTEENTH), (0.1, Fraction(1, 10)), (1, Fraction(1)), (SIXTEENTH, SIXTEENTH),
        ("1e-2", Fraction(1, 100)),
    ],
)  # fmt: skip
def test_ratios_are_read_exactly(text: str | float | Fraction, value: Fraction) -> None:
    assert parse_ratio(text, "r") == value


@pytest.mark.parametrize("text", ["", "half", "1/0", "1//2", "nan", "inf", "50 %%", "None", "%"])
def test_text_that_is_no_number_is_quoted(text: str) -> None:
    with pytest.raises(UserError, match=r"^capacity .* is not a number: expected a share such as 1/16"):
        parse_ratio(text, "capacity")


@pytest.mark.parametrize("text", ["0", "-1/4", "1.01", "101%", "17/16", "0%"])
def test_shares_beyond_the_full_model_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"is outside \(0, 1\]"):
        parse_ratio(text, "p_min")


@pytest.mark.parametrize("k", range(1, 17))
def test_a_square_gives_its_root_and_slightly_less_gives_the_step_below(k: int) -> None:
    r = Fraction(k * k, 256)
    assert width_of(r, SIXTEENTH) == Fraction(k, 16)
    assert width_of(r - Fraction(1, 10**12), SIXTEENTH) == Fraction(max(k - 1, 1), 16)


@pytest.mark.parametrize(
    ("r", "p_min", "width"),
    [("1", "1/16", "1"), ("0.01", "1/16", "1/16"), ("0.0001", "1/16", "1/16"), ("0.5", "1/16", "11/16"),
     ("0.01", "1/4", "1/4"), ("0.5", "1/4", "11/16"), ("1/1000", "1/32", "1/32"), ("0.99", "1", "1")],
)  # fmt: skip
def test_width_by_hand(r: str, p_min: str, width: str) -> None:
    assert width_of(Fraction(r), Fraction(p_min)) == Fraction(width)


@given(
    st.fractions(min_value=Fraction(1, 10**6), max_value=1), st.sampled_from([Fraction(1, n) for n in (1, 2, 8, 16)])
)
def test_width_is_the_largest_affordable_step(r: Fraction, p_min: Fraction) -> None:
    p = width_of(r, p_min)
    assert p >= p_min
    assert (p / SIXTEENTH).denominator == 1
    assert (p + SIXTEENTH) ** 2 > r
    assert p**2 <= r or p == p_min


def test_the_ideal_setting_has_a_wider_minimum() -> None:
    assert default_p_min("ideal") == Fraction(1, 8)
    assert default_p_min("hetero") == default_p_min("levels:1") == SIXTEENTH


def test_ideal_gives_every_client_full_capacity() -> None:
    assert capacities("ideal", 3, 0) == [1, 1, 1]


@pytest.mark.parametrize("setting", ["hetero", "uniform"])
def test_hetero_is_a_seeded_order_of_even_steps(setting: str) -> None:
    r = capacities(setting, 5, 0)
    assert sorted(r) == [Fraction(s) for s in ("1/100", "103/400", "101/200", "301/400", "1")]
    assert r == capacities(setting, 5, 0)
    assert len({tuple(capacities(setting, 5, seed)) for seed in range(20)}) > 10
    assert capacities(setting, 1, 7) == [1]


def test_every_seed_has_the_weakest_and_the_strongest_device() -> None:
    for seed in range(5):
        assert {Fraction(1, 100), Fraction(1)} <= set(capacities("hetero", 100, seed))


def test_levels_are_dealt_evenly_and_shuffled() -> None:
    r = capacities("levels:1,1/4,6.25%", 7, 0)
    assert Counter(r) == {Fraction(1): 3, Fraction(1, 4): 2, SIXTEENTH: 2}
    assert len({tuple(capacities("levels:1,1/4,1/16", 7, seed)) for seed in range(20)}) > 10


def test_a_list_keeps_its_order() -> None:
    assert capacities("list:1, 1/4,0.5", 3, 9) == [1, Fraction(1, 4), Fraction(1, 2)]


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_a_file_names_clients_in_any_order(tmp_path: Path, start: str) -> None:
    """Also with the byte-order mark that spreadsheets write."""
    file = tmp_path / "r.csv"
    file.write_text(f"{start}client,r,note\n2,25%,a\n0,1,b\n1,1/16,c\n", "utf-8")
    assert capacities(str(file), 3, 0) == [1, SIXTEENTH, Fraction(1, 4)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("client,r\n0,1\n1,1\n", "has 2 capacities for 3 clients: expected one each"),
        ("client,r\n", "has 0 capacities for 3 clients"),
        ("", "has 0 capacities for 3 clients"),
        ("id,r\n0,1\n1,1\n2,1\n", "must have the columns client and r"),
        ("client,share\n0,1\n1,1\n2,1\n", "must have the columns client and r"),
        ("client,r\n0,1\n1,1\n1,1\n", r"must name each client 0\.\.2 once"),
        ("client,r\n1,1\n2,1\n3,1\n", r"must name each client 0\.\.2 once"),
        ("client,r\n0,1\nb,1\n2,1\n", "client must be a whole number from 0"),
        ("client,r\n0,1\n1,2\n2,1\n", r"capacity 2 is outside \(0, 1\]"),
        ("client,r\n0,1\n1\n2,1\n", "capacity None is not a number"),
        (f"client,r\n0,{'1' * 200_000}\n", "must have the columns client and r"),
        ("client,r\n0,\xff\n", "must have the columns client and r"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "r.csv"
    file.write_bytes(content.encode("latin1"))
    with pytest.raises(UserError, match=complaint) as caught:
        capacities(str(file), 3, 0)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    with pytest.raises(UserError, match=r"nowhere.csv cannot be read: No such file or directory"):
        capacities(str(tmp_path / "nowhere.csv"), 3, 0)
    with pytest.raises(UserError, match=r"folder.csv cannot be read: Is a directory"):
        capacities(str(folder), 3, 0)


@pytest.mark.parametrize("setting", ["", "heterogeneous", "ideal:1", "hetero:0.5", "uniform:", "levels", "level:1"])
def test_unknown_settings_are_refused(setting: str) -> None:
    complaint = (
        "capacity '' is not a number" if setting == "levels" else f"^unknown setting '{setting}': expected ideal"
    )
    with pytest.raises(UserError, match=complaint):
        capacities(setting, 3, 0)


@pytest.mark.parametrize("setting", ["list:1,1", "list:1,1,1,1"])
def test_a_list_needs_one_capacity_per_client(setting: str) -> None:
    with pytest.raises(
        UserError, match=r"^the list of capacities has [24] capacities for 3 clients: expected one each"
    ):
        capacities(setting, 3, 0)
