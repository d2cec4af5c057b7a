"""Records side by side: columns on equal terms, tests of differences, and what the page begins with."""

import numpy as np
import pytest
from records_made import record

from pa3dfl.experiments.reproduce import ablation, overall, page, verdict
from pa3dfl.experiments.reproduce.groups import Column, columns, with_empty
from pa3dfl.experiments.reproduce.markdown import amount
from pa3dfl.experiments.reproduce.significance import difference, sign_flip

FEW, MANY = [0.5, 0.6, 0.7, 0.8, 0.5, 0.6], [0.9, 0.8, 0.9, 0.95, 0.8, 0.9]


def cells_of(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [c.strip() for c in line.strip("|").split("|")]


def test_only_runs_on_equal_terms_share_a_column() -> None:
    runs = [record("pa3dfl", MANY), record("fedavg", FEW), record("ditto", FEW, planned_rounds=20)]
    runs += [record("fjord", FEW, config={"init": "pytorch"}), record("flanc", FEW, setting="ideal")]
    found = columns(runs)
    assert [[r.name for r in c.rows] for c in found] == [["ditto"], ["fedavg", "pa3dfl"], ["fjord"], ["flanc"]]


def test_the_paper_beside_ours() -> None:
    [column] = columns([record("pa3dfl", MANY), record("pa3dfl", FEW, seed=1), record("fedavg", FEW)])
    text = overall.accuracies(column)
    mean, deviation = np.mean([np.mean(MANY), np.mean(FEW)]), np.std([np.mean(MANY), np.mean(FEW)], ddof=1)
    ours = f"**{100 * mean:.1f} ± {100 * deviation:.1f}**"
    assert cells_of(text, "Pa3dFL") == [
        "Pa3dFL", "89.55 ± 0.20", ours, f"{100 * mean - 89.55:+.1f}", "65.0", "10 of 500", "0, 1", "fp32",
    ]  # fmt: skip
    assert cells_of(text, "Ditto") == ["Ditto", "86.51 ± 0.44", *["–"] * 6]


def test_the_latest_run_of_a_cell_counts() -> None:
    [column] = columns([record("pa3dfl", FEW, date="2026-02-01"), record("pa3dfl", MANY, date="2026-01-01")])
    assert column.rows[0].rule("adapted") == pytest.approx(np.mean(FEW))
    assert "1 older run of" in overall.section(column)
    assert "(option `keep`): none." in overall.section(column)
    [column] = columns([record("pa3dfl", FEW, config={"keep": "all"})])
    assert "(option `keep`): all." in overall.section(column)


def test_accuracy_within_a_budget() -> None:
    def point(cost: int, test: float, val: float) -> dict:
        return {"round": 1, "bytes": cost, "multiply_adds": cost, "seconds": 1, "test": {"adapted": test},
                "val": {"adapted": val}}  # fmt: skip

    cheap = record("fedavg", FEW, curve=[point(1, 0.5, 0.5), point(4, 0.6, 0.4)])
    dear = record("pa3dfl", MANY, curve=[point(25, 0.7, 0.7), point(100, 0.9, 0.9)])
    free = record("local-only", FEW, curve=[point(0, 0.3, 0.3)])
    text = overall.equal_cost(columns([cheap, dear, free])[0], "bytes", "bytes sent", 1)
    assert cells_of(text, "method") == ["method", "in all", "within 25", "within 50", "within 100"]
    assert cells_of(text, "FedAvg")[1:] == ["4", "50.0", "50.0", "50.0"]  # validation prefers the first evaluation
    assert cells_of(text, "Pa3dFL")[1:] == ["100", "70.0", "70.0", "90.0"]
    assert cells_of(text, "LocalOnly")[1:] == ["0", "30.0", "30.0", "30.0"]
    assert [amount(v) for v in (0, 0.01234, 4.567, 7886.4, 13.6e3, 1.5e7)] == [
        "0", "0.0123", "4.57", "7,890", "13,600", "1.5e+07",
    ]  # fmt: skip


def test_columns_without_a_run_stay_visible() -> None:
    found = with_empty(columns([record("pa3dfl", MANY)]))
    assert [c.title for c in found][:2] == ["CIFAR100 Hetero", "Fashion-MNIST Hetero, 10 of 500 rounds"]
    assert len(found) == 6
    assert cells_of(overall.section(found[0]), "Pa3dFL")[2:] == ["–"] * 8
    other_model = Column("cifar10", "hetero", "cnn-cifar100", 80)
    assert "values do not apply" in overall.section(other_model)
    assert cells_of(overall.section(other_model), "Pa3dFL")[1] == "–"


# --- differences ---


def test_sign_flips_are_exact_for_few_differences() -> None:
    assert sign_flip(np.array([1.0, 2.0, 3.0])) == 2 / 8
    assert sign_flip(np.array([1.0, -1.0])) == 1.0
    assert sign_flip(np.zeros(5)) == 1.0
    assert sign_flip(np.array([0.0, 4.0])) == 1.0  # of one client that differs nothing follows


def test_random_sign_flips_agree_with_the_normal_law() -> None:
    d = np.random.default_rng(1).normal(0.2, 1, 200)
    z = d.sum() / np.sqrt((d**2).sum())
    normal = {1.96: 0.05, 2.58: 0.01}
    assert sign_flip(d / 1.0) == pytest.approx(2 * (1 - _phi(z)), abs=0.01)
    assert all(2 * (1 - _phi(at)) == pytest.approx(p, abs=1e-3) for at, p in normal.items())


def _phi(z: float) -> float:
    from math import erf, sqrt

    return 0.5 * (1 + erf(abs(z) / sqrt(2)))


def test_clients_are_paired_within_seeds_that_both_have() -> None:
    [column] = columns([record("pa3dfl", MANY), record("pa3dfl", FEW, seed=2), record("fedavg", FEW)])
    a, b = column.row("pa3dfl"), column.row("fedavg")
    assert a
    assert b
    d = difference(a, b, "adapted")
    assert d
    assert d.mean == pytest.approx(np.mean(np.subtract(MANY, FEW)))
    assert (d.seeds, d.verdict, d.p) == ((pytest.approx(d.mean),), 1, 2 / 2**6)
    back = difference(b, a, "adapted")
    assert back
    assert back.verdict == -1
    assert difference(a, b, "kept") is None


def test_an_ablation_is_shown_as_a_difference() -> None:
    [column] = columns([record("pa3dfl", MANY), record("pa3dfl-flanc", FEW)])
    cells = cells_of(ablation.section(column), "Pa3dFL with FLANC's decomposition")
    d = np.subtract(FEW, MANY)
    told = f"{100 * d.mean():+.1f} ± {100 * d.std(ddof=1) / 6**0.5:.1f}"
    assert cells[1:] == ["84.58", "-5.0", f"{100 * np.mean(FEW):.1f}", told, "0.031", "1 of 1"]
    assert cells_of(ablation.section(column), "Pa3dFL without the hyper-network")[3:] == ["–"] * 4


# --- what the page begins with ---


def test_the_page_begins_with_the_order_of_methods() -> None:
    def told(**others: list[float]) -> str:
        own = [record("pa3dfl", MANY)] + [record(k.replace("_", "-"), v) for k, v in others.items()]
        return verdict.opening(columns(own))

    first, rest = told(fedavg=FEW).split("\n\n", 1)
    assert first == "What runs with 1 seed, shorter than the paper's, show:"
    assert rest.startswith("- Tested as *adapted*, Pa3dFL leads on Fashion-MNIST Hetero.\n\n| column |")
    place = "Fashion-MNIST Hetero"
    missing = "Ditto, pFedHN, FLANC, Fjord, HeteroFL, FedRolex, LocalOnly, LG-FedAvg, TailorFL and pFedGate"
    assert cells_of(rest, place)[1:] == ["adapted", "87.5, leads", "–", "–", "1, first FedAvg 61.7", missing]

    close, best = [*MANY[:-1], 0.8], [v + 0.04 for v in MANY]
    level = told(fedavg=close, ditto=FEW)
    assert "Pa3dFL is level with the best on Fashion-MNIST Hetero (FedAvg 85.8%, Pa3dFL 87.5%)." in level
    behind = told(fedavg=close, ditto=best)
    assert "Pa3dFL is behind on Fashion-MNIST Hetero (Ditto 91.5%, Pa3dFL 87.5%)." in behind
    assert cells_of(behind, place)[2:6] == ["87.5", "Ditto 91.5", "FedAvg 85.8", "–"]
    assert "no result yet" in told()


def test_the_page_says_what_the_parts_are_worth() -> None:
    def told(other: list[float]) -> str:
        return verdict.opening(columns([record("pa3dfl", MANY), record("fedavg", FEW), record("pa3dfl-flanc", other)]))

    start = "- With FLANC's decomposition in place of its own, Pa3dFL tested as *adapted* is "
    assert start + "as good on Fashion-MNIST Hetero (-1.7 ± 1.7): its own is no advantage here." in told(
        [*MANY[:-1], 0.8]
    )
    error = 100 * np.subtract(MANY, FEW).std(ddof=1) / len(FEW) ** 0.5
    assert start + f"worse on Fashion-MNIST Hetero (-25.8 ± {error:.1f}).\n" in told(FEW)


def test_rules_of_testing_are_shown_apart() -> None:
    def both(row: str, adapted: list[float], received: list[float]) -> dict:
        one, two = record(row, adapted), record(row, received)
        two["rules"]["received"] = two["rules"].pop("adapted")
        clients = one["clients"] | {"received": received}
        return one | {"rules": one["rules"] | two["rules"], "clients": clients}

    text = verdict.opening(columns([both("pa3dfl", MANY, FEW), both("fedavg", FEW, MANY)]))
    assert "- Tested as *adapted*, Pa3dFL leads on Fashion-MNIST Hetero.\n" in text
    assert "- Tested as *received*, Pa3dFL is behind on Fashion-MNIST Hetero (FedAvg 87.5%, Pa3dFL 61.7%).\n" in text


def test_of_several_lengths_the_longest_is_shown() -> None:
    short = [record("pa3dfl", FEW), record("fedavg", MANY)]
    long = [record("pa3dfl", MANY, planned_rounds=500, seed=s) for s in (0, 1)]
    text = verdict.opening(columns([*short, *long, record("fedavg", FEW, planned_rounds=500)]))
    assert text.startswith("What runs with 1–2 seeds show:\n\n- Tested as *adapted*, Pa3dFL leads")
    assert cells_of(text, "Fashion-MNIST Hetero")[2] == "87.5, leads"


def test_the_length_with_the_most_methods_is_told_and_the_papers_end_beside_it() -> None:
    short = [record(name, FEW) for name in ("fedavg", "ditto", "fjord")]
    whole = [record("pa3dfl", MANY, planned_rounds=500), record("fedavg", FEW, planned_rounds=500)]
    text = verdict.opening(columns([record("pa3dfl", MANY), *short, *whole]))
    assert cells_of(text, "Fashion-MNIST Hetero")[5].startswith("3, first")
    assert (
        "- Run as long as in the paper and tested as *adapted* on Fashion-MNIST Hetero, Pa3dFL has 87.5% (in the "
        "paper 89.5%) and FedAvg has 61.7% (in the paper 87.8%).\n" in text
    )


def test_machines_of_the_runs_are_named() -> None:
    text = page.provenance([record("pa3dfl", MANY), record("fedavg", FEW, commit="def+", device="another")])
    assert "- a processor: 1 run, 1 min 00 s, precision fp32" in text
    assert "commits: abc, def+ (+: with changes)" in text
