"""What a federation plans to do, and the state from which its next round follows."""

from collections.abc import MutableMapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pa3dfl.core.tree import Tree
from pa3dfl.federation.checkpoint import Saved
from pa3dfl.methods import Score


@dataclass(frozen=True)
class Plan:
    """How long to train, how often to evaluate and to save."""

    rounds: int
    per_round: int
    eval_every: int
    patience: float
    select: str
    checkpoint_every: int
    eval_clients: int = 0
    robust: str = "mean"
    tested: str = "adapted"
    newcomer_rounds: int = 0

    @property
    def rules(self) -> list[str]:
        """The rules by which the engine tests. `adapted` trains first, so it is left out where it does not count."""
        return ["received", *(["adapted"] if self.tested == "adapted" else [])]

    def evaluates(self, rnd: int) -> bool:
        return rnd % self.eval_every == 0 or rnd == self.rounds

    def saves(self, rnd: int) -> bool:
        return rnd % self.checkpoint_every == 0 or rnd == self.rounds

    def next_evaluation(self, rnd: int) -> int:
        """The first evaluated round from `rnd` on."""
        return min(self.rounds, -(-rnd // self.eval_every) * self.eval_every)

    def evaluations(self, until: int) -> int:
        return until // self.eval_every + (until == self.rounds and until % self.eval_every > 0)

    def work(self, until: int, tested: int) -> int:
        """How many clients the first rounds train and test, with `tested` in each evaluation."""
        return until * self.per_round + self.evaluations(until) * tested


@dataclass
class Best:
    """The best evaluation so far by one rule of testing."""

    round: int = 0
    val: float = -1.0
    scores: list[Score] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    """The round of each score: `round`, unless every client has a best round of its own."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Best":
        """From JSON; runs of earlier versions have no `rounds`."""
        scores = [Score(**s) for s in facts["scores"]]
        return cls(facts["round"], facts["val"], scores, facts.get("rounds", [facts["round"]] * len(scores)))

    def when(self) -> dict[int, int]:
        """The round of each client's score."""
        return {s.client: rnd for s, rnd in zip(self.scores, self.rounds, strict=True)}


@dataclass
class State:
    """Everything that a later round depends on."""

    round: int
    server: Tree
    private: MutableMapping[int, Tree]
    tested: str
    """The rule whose scores choose the best round."""
    bests: dict[str, Best] = field(default_factory=dict)
    kept: dict[int, Score] = field(default_factory=dict)
    """For each client, the score of the model from its last participation."""
    seconds: float = 0.0
    rejected: int = 0
    record: dict[str, Any] | None = None
    """The line of rounds.jsonl that belongs to `round`."""
    stopped: bool = False

    @property
    def best(self) -> Best:
        return self.bests.get(self.tested, Best())

    def facts(self) -> dict[str, Any]:
        """All that is not a tensor, for JSON; `restored` reads it."""
        apart = ("round", "server", "private", "tested", "bests", "kept")
        facts = {k: v for k, v in self.__dict__.items() if k not in apart}
        bests = {rule: asdict(best) for rule, best in self.bests.items()}
        return facts | {"bests": bests, "kept": [asdict(s) for s in self.kept.values()]}

    @classmethod
    def restored(cls, saved: Saved, tested: str) -> "State":
        facts = dict(saved.facts)
        bests = {rule: Best.of(b) for rule, b in facts.pop("bests").items()}
        kept = {s["client"]: Score(**s) for s in facts.pop("kept")}
        return cls(saved.round, saved.server, saved.private, tested, bests, kept, **facts)
