"""The schema of options: what it refuses, what it suggests, what it shows."""

import math
from dataclasses import dataclass, fields

import pytest

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.schema import check, flag_help, option, suggest


@dataclass(frozen=True)
class Options:
    share: float | None = option(None, "a share", above=0, at_most=1)
    count: int = option(2, "a count", at_least=1)
    kind: str = option("a", "a kind", choices=("a", "b"))
    untold: int = 0  # not an option

    def __post_init__(self) -> None:
        check(self)


def test_limits() -> None:
    Options(share=1, count=1, kind="b", untold=-9)
    Options(share=None)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"share": 0}, "share is 0: expected a number above 0"),
        ({"share": 1.5}, "share is 1.5: expected at most 1"),
        ({"share": math.nan}, "share is nan: expected a number above 0"),
        ({"count": 0}, "count is 0: expected at least 1"),
        ({"count": math.inf}, "count is inf: expected a finite number"),
        ({"kind": "c"}, "kind is 'c': expected one of a, b"),
    ],
)
def test_a_value_outside_its_limits_is_refused(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        Options(**given)  # type: ignore[arg-type]
    assert str(caught.value) == complaint


def test_help_shows_choices_and_default() -> None:
    share, count, kind, _ = fields(Options)
    assert [flag_help(f) for f in (share, count, kind)] == [
        "a share [by data]",
        "a count [2]",
        "a kind; one of a, b [a]",
    ]


def test_a_similar_word_is_suggested() -> None:
    assert suggest("round", ("rounds", "seed")) == "did you mean rounds?"
    assert suggest("zzz", ("rounds", "seed"), "see the list") == "see the list"
