"""Evaluation: scores of the clients' models by each rule of testing, the best of them, and when to stop."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pa3dfl.engines import Engine, Round
from pa3dfl.engines.base import Tick
from pa3dfl.federation.state import Best, Plan, State
from pa3dfl.methods import Score
from pa3dfl.runs.metrics import averages

Scores = dict[str, list[Score]]
"""For each rule of testing, the scores in the order of clients."""


def score(engine: Engine, work: Round, rules: list[str], kept: Mapping[int, Score], tick: Tick) -> Scores:
    """Test the clients of `work`. `kept` holds the scores of the models from the clients' last training."""
    scores = engine.evaluate(work, rules, tick)
    by_rule = {rule: [s for s in scores if s.rule == rule] for rule in rules}
    # A client that never took part has only the model that it would receive.
    by_rule["kept"] = [kept.get(s.client, replace(s, rule="kept")) for s in by_rule["received"]]
    return by_rule


def judge(state: State, by_rule: Scores, plan: Plan, best_round_per_client: bool) -> None:
    """Keep the best evaluation of each rule; stop when the rule that counts has not improved for `plan.patience`."""
    for rule, scores in by_rule.items():
        best = state.bests.setdefault(rule, Best())
        found = {s.client: (s, state.round) for s in scores}
        if best_round_per_client:
            for own, rnd in zip(best.scores, best.rounds, strict=True):
                if own.client not in found or own.val_accuracy >= found[own.client][0].val_accuracy:
                    found[own.client] = own, rnd
        chosen = [found[i] for i in sorted(found)]
        val = averages([s for s, _ in chosen])["val_accuracy"]
        if val > best.val:
            state.bests[rule] = Best(state.round, val, [s for s, _ in chosen], [rnd for _, rnd in chosen])
    if state.round - state.best.round > plan.patience * plan.rounds:
        state.stopped = True


def record(by_rule: Scores, tested: str, untested: list[int]) -> dict[str, Any]:
    """The entries of rounds.jsonl for an evaluation: the means by rule `tested`, then those by every rule."""
    rules = {rule: averages(scores) for rule, scores in by_rule.items()}
    return rules[tested] | {"untested": untested, "rules": rules}
