"""Pictures from records, the reduction ratio's bound, and the tables that are measured rather than trained."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from records_made import record

from pa3dfl import methods
from pa3dfl.engines import cost
from pa3dfl.experiments.reproduce import curves, efficiency, figures, hn_cost, paper, partitions, ratio, records
from pa3dfl.experiments.reproduce.groups import columns
from pa3dfl.methods import assembly

PNG = b"\x89PNG"
near = pytest.approx


def test_the_bound_of_appendix_a() -> None:
    checked = 0
    for operator in (ratio.Operator(64, 64, 5), ratio.Operator(64, 32, 5), ratio.Operator(256, 64, 3)):
        for p_min in (Fraction(1, 4), Fraction(1, 16)):
            for p in ratio.widths(p_min):
                bound = operator.bound(p, p_min)
                assert bound is not None
                assert operator.ratio(p, p_min) <= bound * (1 + 1e-12)
                checked += operator.ratio(p, p_min) < bound * 0.9
    assert checked  # it is not simply the ratio again
    square = ratio.Operator(64, 64, 5)  # where S = T it is
    assert square.ratio(Fraction(1, 2), Fraction(1, 16)) == pytest.approx(square.bound(Fraction(1, 2), Fraction(1, 16)))
    assert ratio.Operator(64, 3, 5).bound(Fraction(1, 2), Fraction(1, 16)) is None
    assert ratio.Operator(64, 64, 5, R2=128).bound(Fraction(1, 2), Fraction(1, 16)) is None


def test_a_ratio_counts_both_factors() -> None:
    # R1 = 4, R2 = 25: θ_u is 4·25 × 25; at p = 1/2 θ_v has 8 blocks of 25 × 8.
    assert ratio.Operator(64, 16, 5).ratio(Fraction(1, 2), Fraction(1, 16)) == (100 * 25 + 8 * 25 * 8) / (64 * 16 * 25)
    # R1 = R2 = 4 in a linear layer
    assert ratio.Operator(64, 16, 1).ratio(Fraction(1), Fraction(1, 16)) == (4 * 4 + 16 * 4 * 16) / (64 * 16)


def test_curves_are_means_at_rounds_that_all_seeds_have() -> None:
    def run(seed: int, *points: tuple[int, int, float]) -> dict:
        made = [{"round": r, "bytes": b, "multiply_adds": b, "seconds": r, "test": {"adapted": a},
                 "val": {"adapted": a}} for r, b, a in points]  # fmt: skip
        return record("fedavg", [0.5, 0.6], seed=seed, curve=made)

    [column] = columns([run(0, (1, 0, 0.2), (2, 8, 0.4)), run(1, (1, 0, 0.4), (2, 4, 0.6), (3, 9, 0.9))])
    assert curves.mean_curve(column.rows[0], "adapted", "round") == [(1.0, near(30)), (2.0, near(50))]
    assert curves.mean_curve(column.rows[0], "adapted", "bytes") == [(6.0, near(50))]  # no 0 on a log axis


def test_an_option_is_swept_with_the_default_among_its_values() -> None:
    runs = [record("pa3dfl", [0.8, 0.9], config={"lam": 0.001})]
    runs += [record("pa3dfl@lam=0.1", [0.7, 0.8], config={"lam": 0.1})]
    runs += [record("pa3dfl@depth=2", [0.1, 0.1], config={"lam": 0.001, "depth": 2})]
    [column] = columns(runs)
    assert curves.swept(column, "lam") == {"adapted": [(0.001, near(85)), (0.1, near(75))]}


def test_all_pictures_of_a_page(tmp_path: Path) -> None:
    groups = [{"low": i / 5, "high": (i + 1) / 5, "accuracy": 0.5} for i in range(5)]
    values = {"pa3dfl": 0.001, "pa3dfl@lam=0.1": 0.1}
    runs = [record(row, [0.8, 0.9], config={"lam": value}) for row, value in values.items()]
    for run in runs:
        run["rules"]["adapted"]["by_capacity"] = groups
        run["clients"]["alpha"] = [0.1, None]
    config = assembly.configure({"clients": 7, "partition": "classes", "device": "cpu"})
    partitions.run(config, tmp_path)
    folder = tmp_path / "docs/images/reproduction"
    folder.mkdir(parents=True)
    (folder / "of-an-earlier-page.png").write_bytes(PNG)
    text = figures.section(columns(runs), tmp_path, tmp_path / "docs")
    files = [tmp_path / "docs" / line[line.index("](") + 2 : -1] for line in text.splitlines() if line.startswith("![")]
    assert len(files) == 6
    assert all(f.read_bytes()[:4] == PNG for f in files)
    assert sorted(f.name for f in files) == sorted(p.name for p in folder.iterdir())


def test_a_partition_is_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = assembly.configure({"clients": 7, "partition": "classes", "device": "cpu"})
    path = partitions.run(config, tmp_path)
    counts = np.array((records.read(path) or {})["counts"])
    assert counts.shape == (7, 10)
    assert counts.sum() == 10_000
    monkeypatch.setattr(partitions, "counts", None)
    assert partitions.run(config, tmp_path) == path


# --- efficiency and the hyper-network's cost ---


def test_the_papers_multiply_adds_and_sizes() -> None:
    """All rows at batch 128, without the memory, within the paper's rounding (it cuts digits off)."""
    printed = paper.numbers()["efficiency"]
    for row, name in efficiency.ROWS.items():
        method = methods.find(name)()
        for i, r in enumerate(paper.RATIOS):
            width, p_min = efficiency.width_and_p_min(row, r)
            model = assembly.make_model(efficiency.MODEL, method, efficiency.SHAPE, efficiency.CLASSES, p_min)
            [found] = cost.cost(method, model, p_min, 128, [width])
            ours = found["encoder_multiply_adds"] * efficiency.MEASURES["multiply_adds"]
            assert ours == pytest.approx(printed["full"]["multiply_adds"][row][128][i], abs=0.12), (row, r)
            size = found["encoder_bytes"] * efficiency.MEASURES["size"]
            assert size == pytest.approx(printed["main"]["size"][row][i], abs=0.1), (row, r)


def test_efficiency_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficiency, "ROWS", {"p-width": "fedavg"})
    monkeypatch.setattr(paper, "RATIOS", (Fraction(1, 256),))
    path = efficiency.run(tmp_path, "cpu", [4])
    [row] = (records.read(path) or {})["rows"]
    assert {k: row[k] for k in ("row", "r", "batch")} == {"row": "p-width", "r": "1/256", "batch": 4}
    assert row["memory"] > row["size"] > 0
    assert len((records.read(efficiency.run(tmp_path, "cpu", [4])) or {})["rows"]) == 1
    assert len((records.read(efficiency.run(tmp_path, "cpu", [4, 8])) or {})["rows"]) == 2


def test_the_hyper_network_is_timed_at_every_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hn_cost, "MODELS", {"cnn-cifar100": hn_cost.MODELS["cnn-cifar100"]})
    monkeypatch.setattr(hn_cost, "REPEATS", 1)
    found = hn_cost.measure("cnn-cifar100", torch.device("cpu"))
    assert len(found) == 3
    assert all(len(times) == 4 and min(times) > 0 for times in found)
    monkeypatch.setattr(hn_cost, "free_bytes", lambda: 1000)
    said: list[str] = []
    hn_cost.run(tmp_path, "cpu", torch.get_num_threads(), said.append)
    assert "is not measured: it needs" in said[0]
    assert "0.01 / 0.26" in hn_cost.section(tmp_path)
    assert "–" in hn_cost.section(tmp_path)
    record = {"device": "a processor", "threads": 1, "seconds": {"cnn-cifar100": [[1.0, 2.0, 3.0, 4.0]] * 3}}
    records.write(record, tmp_path / "hn-cost", "a")
    page = hn_cost.section(tmp_path)
    assert "| cnn-cifar100 | a processor, 1 thread | 1 / 2 | 1 / 2 | 1 / 2 |" in page
    assert "| cnn-cifar100 | the same, of the processor | 3 / 4 | 3 / 4 | 3 / 4 |" in page
