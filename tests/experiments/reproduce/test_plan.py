"""Which runs a plan has, in which order, and which of them are the same."""

from fractions import Fraction
from pathlib import Path

import pytest

from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.experiments.reproduce import cells, paper, records, timing
from pa3dfl.methods import assembly


def test_the_most_telling_cells_first() -> None:
    plan = cells.plan(paper.PARTS, paper.DATA, paper.SETTINGS, None, [0, 1])
    assert len(set(plan)) == len(plan)
    assert [(c.data, c.row) for c in plan[:4]] == [*((d, "pa3dfl") for d in paper.DATA), ("cifar100", "fedavg")]
    places = {
        kind: [i for i, c in enumerate(plan) if kind(c)] for kind in (hetero_rival, other, ablation, sweep, ideal)
    }
    for earlier, later in zip(list(places)[:-1], list(places)[1:], strict=True):
        assert max(places[earlier]) < min(places[later]), (earlier, later)
    assert max(i for i, c in enumerate(plan) if c.seed == 0) < min(i for i, c in enumerate(plan) if c.seed == 1)


def hetero_rival(c: cells.Cell) -> bool:
    return c.seed == 0 and c.setting == "hetero" and c.row in cells.RIVALS


def other(c: cells.Cell) -> bool:
    return c.seed == 0 and c.setting == "hetero" and c.row in set(methods.registry()) - set(cells.RIVALS)


def ablation(c: cells.Cell) -> bool:
    return c.seed == 0 and c.setting == "hetero" and c.method in methods.registry(methods.ABLATIONS)


def sweep(c: cells.Cell) -> bool:
    return c.seed == 0 and c.setting == "hetero" and bool(c.options)


def ideal(c: cells.Cell) -> bool:
    return c.seed == 0 and c.setting == "ideal"


def test_runs_of_each_part() -> None:
    def rows(*parts: str, words: list[str] | None = None, setting: str = "hetero") -> set[str]:
        return {c.row for c in cells.plan(parts, ["cifar10"], [setting], words, [0])}

    assert rows("overall") == set(methods.registry())
    assert rows("ablation") == {"pa3dfl", "pa3dfl-flanc", "pa3dfl-without-hn"}
    assert rows("ablation", setting="ideal") == set()
    assert rows("efficiency", "hn-cost") == set()
    swept = {f"pa3dfl@{k}={v}" for k, values in cells.SWEEPS.items() for v in values}
    assert rows("figures") == swept
    assert rows("figures", setting="ideal") == {r for r in swept if "lam" in r}
    assert rows("overall", "figures", words=["fedavg"]) == {"fedavg"}
    assert rows("overall", words=["ditto@mu=0.5", "fedavg"]) == {"ditto@mu=0.5", "fedavg"}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("fedavgg", "did you mean fedavg"),
        ("ditto@nu=1", "'nu=1' is not an option=value of ditto: expected one of mu"),
        ("ditto@mu", "'mu' is not an option=value"),
        ("fedavg@mu=1", "it has no options"),
    ],
)
def test_unknown_methods_are_refused(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cells.plan(["overall"], ["cifar10"], ["hetero"], [word], [0])


CELL = cells.Cell("cifar100", "hetero", "ditto", 0)


@pytest.mark.parametrize(
    ("part", "rounds", "every", "patience"),
    [(Fraction(1), 2000, 10, 0.2), (Fraction(1, 10), 200, 10, 1.0), (Fraction(1, 999), 3, 3, 1.0), (1, 1, 1, 1.0)],
)
def test_rounds_of_a_cell(part: Fraction | int, rounds: int, every: int, patience: float) -> None:
    config = cells.config_of(CELL, {}, part)
    assert (config.rounds, config.eval_every, config.patience) == (rounds, every, patience)


def test_precedence_of_cell_given_options_and_preset() -> None:
    cell = cells.Cell("fashion-mnist-10k", "hetero", "ditto", 3, (("mu", "0.25"),))
    config = cells.config_of(cell, {"epochs": "1", "mu": 9}, 2)
    assert (config.epochs, config.clients, config.seed, config.options) == (1, 40, 3, {"mu": 0.25})


def test_a_key_depends_on_the_computation_and_not_on_the_machine() -> None:
    base = cells.config_of(CELL, {"threads": 1, "device": "cpu"}, 5)
    same = {"threads": 2, "out": "x", "data_dir": "y", "engine": "sequential", "checkpoint_every": 3}
    for name, value in same.items():
        given = {"threads": 1, "device": "cpu"} | {name: value}
        assert cells.key(cells.config_of(CELL, given, 5)) == cells.key(base), name
    for name, value in {"lr": 0.3, "precision": "bf16", "clients": 7, "mu": 0.3}.items():
        assert cells.key(cells.config_of(CELL, {"threads": 1, "device": "cpu", name: value}, 5)) != cells.key(base), (
            name
        )
    assert cells.key(cells.config_of(CELL, {"threads": 1, "device": "cpu"}, 6)) != cells.key(base)


def test_the_papers_cells() -> None:
    assert paper.accuracy("cifar100", "hetero", "pa3dfl", "cnn-cifar100") == (51.48, 0.99)
    assert paper.accuracy("cifar10", "hetero", "pa3dfl", "cnn-cifar100") is None
    assert paper.accuracy("fashion-mnist-10k", "hetero", "pa3dfl", "cnn-fashion") is None
    overall = paper.numbers()["overall"]
    assert set(paper.order()) == set(methods.registry())
    assert all(list(overall[d][s]) == paper.order() for d in paper.DATA for s in paper.SETTINGS)
    # Pa3dFL leads three of the columns, is second in two, and sixth with Fjord in the last.
    ranks = [sorted((-v[0], m) for m, v in overall[d][s].items()) for d in paper.DATA for s in paper.SETTINGS]
    assert [[m for _, m in r].index("pa3dfl") for r in ranks] == [0, 0, 1, 5, 0, 1]


RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize("path", sorted((RESULTS / "runs").glob("*.json"))[::6], ids=lambda p: p.stem)
def test_a_published_run_is_still_that_of_its_config(path: Path) -> None:
    """Otherwise the plan would have it trained again: options that came later must not change its name."""
    record = records.read(path) or {}
    keep = {"keep": "none"} if record["method"].startswith("pa3dfl") else {}
    given = record["config"] | {"device": "cpu", "precision": record["precision"].replace("tf32", "fp32"), "out": "x"}
    assert cells.slug(assembly.configure(keep | given)) == path.stem


def test_an_estimate_counts_rounds_and_tests() -> None:
    given = {"clients": 10, "per_round": 4, "epochs": 5, "eval_every": 3, "device": "cpu", "threads": 1}
    config = cells.config_of(cells.Cell("tiny.npz", "hetero", "pa3dfl", 0), given, 7)
    assert timing.trains_to_test(config)
    pace = {"epoch": 0.5, "test": 0.25}
    # Tests after rounds 3, 6 and 7; each trains all ten first.
    assert timing.estimate(config, pace, 10) == 7 * 4 * 5 * 0.5 + 3 * 10 * (0.25 + 5 * 0.5)
    assert timing.estimate(config, pace, 10, done=6) == 4 * 5 * 0.5 + 10 * (0.25 + 5 * 0.5)
