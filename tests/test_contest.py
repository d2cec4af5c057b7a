"""The contest of benchmarks: turns, failures and ratios. Speeds are for `make bench` to tell."""

import math
import subprocess
import time
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.arguments import count, width
from benchmarks.contest import Contest, end, hidden, reason, summary
from benchmarks.workload import Work

TINY = Work(width=1 / 16, clients=2, rows=50, epochs=1, rounds=1, threads=1)


def test_a_contestant_trains_and_tells_its_speed(tmp_path):
    contest = Contest({"library": ("library", "auto", "fast", "fp32")}, tmp_path)
    result = contest.play("library", TINY)
    assert result.get("error") is None
    assert result["samples_per_second"] > 0


def test_a_contestant_is_ended_after_its_time_limit(tmp_path):
    contest = Contest({"limit": ("limit", "fp32")}, tmp_path, patience=1)
    assert contest.play("limit", TINY) == {"error": "not done after 1 s"}


def test_processes_that_a_contestant_started_end_with_it():
    process = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    child = int(process.stdout.readline())
    end(process)
    for _ in range(100):  # until the system has buried it
        stat = Path(f"/proc/{child}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("its child lives on")


def test_a_failed_contestant_is_tried_once_more_and_then_left_out(tmp_path):
    (results,) = Contest({}, tmp_path / "nowhere").hold(["flgo"], [TINY], repeats=3)
    assert [r["error"] for r in results["flgo"]] == [f"no environment at {tmp_path}/nowhere: `make bench` makes it"] * 2


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Traceback:\n  x\nValueError: too wide\n", "ValueError: too wide"),
        ("a.b.SomeError: first\nValueError: second\nbye", "ValueError: second"),
        # A launcher's own error says less than its child's.
        ("[rank1]: RuntimeError: no card\n===\nelastic.ChildFailedError: \n=====", "[rank1]: RuntimeError: no card"),
        ("JAX computes on gpu here", "JAX computes on gpu here"),
        ("", "it said nothing"),
    ],
)
def test_the_reason_of_a_failure(said, told):
    assert reason(said) == told


def test_a_contest_of_processors_hides_the_gpu():
    assert hidden(TINY)["CUDA_VISIBLE_DEVICES"] == ""
    assert not hidden(replace(TINY, device="cuda"))


def test_medians_and_their_ratios():
    def ran(*speeds):
        return [{"samples_per_second": s, "peak_mb": s / 10} for s in speeds]

    rows = {
        row["who"]: row
        for row in summary(
            {
                "pa3dfl": ran(300, 400, 900),
                "limit": ran(500),
                "flgo": ran(100),
                "pfl": [{"error": "no card"}, *ran(200)],
                "flwr": [{"error": "no card"}],
            }
        )
    }
    assert rows["pa3dfl"]["samples/s"] == 400
    assert rows["pa3dfl"]["of the best peer"] == 2
    assert rows["pa3dfl"]["of the limit"] == 0.8
    assert rows["pa3dfl"]["peak MB"] == 90
    assert rows["pa3dfl"]["turns that failed"] == ""
    assert rows["pfl"]["turns that failed"] == "1 of 2: no card"
    assert math.isnan(rows["flwr"]["samples/s"])


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", ""])
def test_counts_begin_at_one(text):
    with pytest.raises(ArgumentTypeError, match=f"^'{text}' is not a count: 1, 2, 3, …$"):
        count(text)
    assert count("3") == 3


@pytest.mark.parametrize("text", ["0", "-1", "1.01", "nan", "inf", "half", ""])
def test_widths_are_shares(text):
    with pytest.raises(ArgumentTypeError, match=f"^'{text}' is not a width: a number above 0, at most 1$"):
        width(text)
    assert (width("1"), width("0.25")) == (1.0, 0.25)
