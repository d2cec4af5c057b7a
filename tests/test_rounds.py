"""The benchmark of whole rounds: the limit trains what the method trains, and ratios are those within a turn."""

import pytest

from benchmarks import rounds, tasks


def test_the_limit_trains_as_many_samples_at_the_same_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.CASES, "fashion", ("fashion-mnist", "cnn-fashion", 20, (1, 28, 28), 10))
    trained, plain = [], rounds.plain

    def spy(task, client, model, x, y, samples):
        trained.append((client.width, samples))
        return plain(task, client, model, x, y, samples)

    monkeypatch.setattr(rounds, "plain", spy)
    times = rounds.contest("fashion", "fp32", ["pa3dfl"], repeats=1, epochs=2, threads=1)
    _, task = rounds.made("fashion", "pa3dfl", "fp32", 2)
    once = sorted((c.width, 2 * c.n) for c in tasks.cohort(task))
    assert len(once) == 20
    assert sorted(trained) == sorted((rounds.WARM + 1) * once)
    assert [len(own) for own in times.values()] == [1, 1]
    assert all(clock > 0 and processor > 0 for own in times.values() for clock, processor in own)


def test_ratios_are_medians_of_those_within_a_turn() -> None:
    limit = [(1.0, 2.0), (10.0, 20.0), (2.0, 4.0)]
    ours = [(2.0, 2.0), (11.0, 60.0), (6.0, 16.0)]
    by_name = {row["who"]: row for row in rounds.summary({rounds.LIMIT: limit, "pa3dfl": ours})}
    assert by_name["pa3dfl"]["times the limit"] == 2  # of 2, 1.1 and 3; medians divided would be 6 / 2
    assert by_name["pa3dfl"]["by the processor's"] == 3  # of 1, 3 and 4; medians divided would be 16 / 4
    assert by_name[rounds.LIMIT]["times the limit"] == 1
