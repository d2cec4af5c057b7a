"""Tables within a page that people write."""

from pathlib import Path

import pytest
from records_made import record

from pa3dfl import cli
from pa3dfl.core.errors import UserError
from pa3dfl.experiments.reproduce import records
from pa3dfl.experiments.reproduce.insert import BEGIN, END, fill

GROUPS = [(1 / 16, 0.5), (1 / 4, 0.25), (1.0, 0.75)]


def made(row: str, mean: float, seed: int = 0) -> dict:
    known = {"test_accuracy": mean, "val_accuracy": mean, "worst_decile_accuracy": 0.125, "best_round": 9}
    groups = [{"low": r, "high": r, "accuracy": a} for r, a in GROUPS]
    rules = {"adapted": known | {"by_capacity": groups}, "received": known | {"test_accuracy": 0.1, "by_capacity": []}}
    return record(row, [mean], seed, rules=rules, data="hapt", setting="levels:1,1/4,1/16", model="cnn-sensor")


def test_tables_stand_between_the_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# By hand\n\n{BEGIN}\nold\n{END}\n\nEnd.\n")
    runs = [made("fedavg", 0.5), made("pa3dfl", 0.6), made("pa3dfl", 0.8, seed=1)]
    for i, each in enumerate(runs):
        records.write(each, tmp_path / "results" / "runs", str(i))
    assert cli.main(["reproduce", "--out", str(tmp_path / "results"), "--into", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    assert text.startswith(f"# By hand\n\n{BEGIN}\n\n### HAPT levels:1,1/4,1/16, 10 rounds\n")
    assert text.endswith(f"commits: abc\n\n{END}\n\nEnd.\n")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    levels = "r = 6.25% | r = 25% | r = 100%"
    assert lines[0] == f"| method | adapted | received | worst tenth | {levels} | rounds | seeds |"
    same = "**12.5** | **50.0** | **25.0** | **75.0** | 10"
    assert lines[2] == f"| Pa3dFL | **70.0 ± 14.1** | **10.0 ± 0.0** | {same} | 0, 1 |"
    assert lines[3] == f"| FedAvg | 50.0 | **10.0** | {same} | 0 |"
    assert fill(tmp_path / "results", page).read_text() == text  # again, from what is there now


def test_a_page_without_a_place_and_a_folder_without_records(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(UserError, match="cannot be read"):
        fill(tmp_path, page)
    page.write_text(BEGIN)
    with pytest.raises(UserError, match="has no place for tables: add the lines"):
        fill(tmp_path, page)
    page.write_text(f"{BEGIN}{END}")
    with pytest.raises(UserError, match="holds no records"):
        fill(tmp_path, page)
