"""Tuning grids: what is tried, in which order, and one line for what cannot be."""

import pytest

from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config
from pa3dfl.experiments.grid import Point, check_names, paper_grid, parse, points, sample, tunable
from pa3dfl.methods import assembly

DITTO = tunable(assembly.option_fields(methods.find("ditto")))
PA3DFL = tunable(assembly.option_fields(methods.find("pa3dfl")))


def read(words: list[str]) -> list[Point]:
    grid = parse(words)
    check_names(grid, list(DITTO), ["batch"])
    return points(grid, DITTO)


def test_the_product_in_order_with_values_of_the_right_type() -> None:
    assert points(parse(["lr=0.01,1e-1", "mu=1,0"]), DITTO) == [
        {"lr": 0.01, "mu": 1.0}, {"lr": 0.01, "mu": 0.0}, {"lr": 0.1, "mu": 1.0}, {"lr": 0.1, "mu": 0.0},
    ]  # fmt: skip


def test_options_that_change_together() -> None:
    assert points(parse(["embedding+hidden=64+64,16+128", "hn-lr=1"]), PA3DFL) == [
        {"embedding": 64, "hidden": 64, "hn_lr": 1.0}, {"embedding": 16, "hidden": 128, "hn_lr": 1.0},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "size"),
    [("fedavg", 4), ("ditto", 12), ("flanc", 12), ("tailorfl", 24), ("pfedgate", 16), ("pa3dfl", 4 * 2 * 3 * 3 * 4)],
)
def test_the_papers_grid(method: str, size: int) -> None:
    fields = tunable(assembly.option_fields(methods.find(method)))
    tried = points(paper_grid(method, []), fields)
    assert len(tried) == size
    assert [p["lr"] for p in tried[:: size // 4]] == [0.005, 0.01, 0.05, 0.1]
    for point in tried:  # all of them can be run
        assembly.make_method(assembly.configure({"method": method, **point}))


def test_given_options_are_not_tuned() -> None:
    assert points(paper_grid("ditto", ["lr", "rounds"]), DITTO) == [{"mu": 0.01}, {"mu": 0.1}, {"mu": 1.0}]
    assert len(points(paper_grid("pa3dfl", ["lr", "hidden"]), PA3DFL)) == 3 * 3 * 4


def test_a_sample_keeps_the_order_and_follows_the_seed() -> None:
    tried = points(paper_grid("pa3dfl", []), PA3DFL)
    few = sample("pa3dfl", tried, 5, 0)
    assert len(few) == 5
    assert [tried.index(p) for p in few] == sorted(tried.index(p) for p in few)
    assert few == sample("pa3dfl", tried, 5, 0) != sample("pa3dfl", tried, 5, 1)
    assert sample("pa3dfl", tried, 288, 0) == sample("pa3dfl", tried, None, 0) == tried


def test_a_small_grid_is_filled_up_with_step_sizes_between_its_own() -> None:
    """Four more than the four of FedAvg: at 1/8, 3/8, 5/8 and 7/8 of the way from 0.005 to 0.1 on a log scale."""
    tried = points(paper_grid("fedavg", []), tunable({}))
    more = sample("fedavg", tried, 8, 0)
    assert more == tried + [{"lr": lr} for lr in (0.007271, 0.01538, 0.03252, 0.06877)]
    many = sample("ditto", points(paper_grid("ditto", []), DITTO), 40, 1000)
    assert len({tuple(p.items()) for p in many}) == 40
    assert {p["mu"] for p in many[12:]} == {0.01, 0.1, 1.0}
    assert all(0.005 < p["lr"] < 0.1 for p in many[12:])
    for point in many:  # all of them can be run
        assembly.make_method(assembly.configure({"method": "ditto", **point}))


@pytest.mark.parametrize(
    ("words", "size"), [(["mu=0.1,1"], 2), (["lr=0.1", "mu=0.1,1,2"], 3)], ids=["no step sizes", "one step size"]
)
def test_a_small_grid_without_a_range_of_step_sizes_cannot_be_filled_up(words: list[str], size: int) -> None:
    with pytest.raises(UserError) as caught:
        sample("ditto", read(words), 8, 0)
    assert str(caught.value) == (
        f"trials is 8: the grid of ditto has {size} settings and no range of lr to draw more from; "
        f"give it more values with --grid, or ask for at most {size}"
    )
    assert len(sample("ditto", read(words), size, 0)) == size


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["lr"], "grid 'lr' has no values: expected option=value,value,… such as lr=0.01,0.1"),
        (["lr="], "grid 'lr=' has no values"),
        (["lr=1,,2"], "grid 'lr=1,,2' has no values"),
        (["=1"], "grid '=1' has no values"),
        (["mu+=1"], "grid 'mu+=1' has no values"),
        (["lr=1", "lr=2"], "grid 'lr=2': lr is given twice"),
        (["lr+lr=1+1"], "grid 'lr+lr=1+1': lr is given twice"),
        (["lr=0.1,0.10"], "grid lr: 0.10 is given twice"),
        (["lr=fast"], "lr is 'fast': expected a number"),
        (["epochs=1.5"], "epochs is '1.5': expected a whole number"),
        (["lr+mu=1"], "grid lr+mu: '1' should hold 2 values joined by +"),
        (["muu=1"], "grid option 'muu' cannot be tuned: did you mean mu?"),
        (["seed=1,2"], "grid option 'seed' cannot be tuned: expected one of lr, lr_decay, epochs,"),
        (["batch=10"], "batch is given and in the grid: leave one of them out"),
    ],
)
def test_invalid_grids_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        read(words)
    assert str(caught.value).startswith(complaint)


def test_only_options_of_local_training_and_of_the_method_can_be_tuned() -> None:
    own = set(assembly.option_fields(methods.find("ditto")))
    training = {"lr", "lr_decay", "epochs", "batch", "weight_decay", "clip_norm", "augment"}
    assert set(DITTO) == own | training
    assert training <= set(Config.__dataclass_fields__)
