"""Playing games: both orders of a pair, bounded retries, ties without asking, and their combination.

Sources: PAR (both orders, 1 / .5 / 0, higher total wins), ALARM (a verdict counts only if both orders
agree), Arena-Hard v0.1 (two games with sides swapped, the baseline first in game 1), AlpacaEval 2.0 (soft
preferences, one game, its order drawn per instruction).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlhf_core.errors import JudgeError
from rlhf_core.evaluation.judges.replies import Verdict
from rlhf_core.evaluation.judges.templates import TEMPLATES, Judge, JudgeRequest

Side = Literal["model", "baseline"]

_SCORE_OF_A = {"A>>B": 1.0, "A>B": 1.0, "A=B": 0.5, "B>A": 0.0, "B>>A": 0.0, "A": 1.0, "B": 0.0, "N": 0.5}
_MIRROR = {"A>>B": "B>>A", "A>B": "B>A", "A=B": "A=B", "B>A": "A>B", "B>>A": "A>>B", "A": "B", "B": "A", "N": "N"}


@dataclass(frozen=True)
class JudgedPair:
    """A pair to judge: the model's answer against the baseline's answer to one prompt."""

    id: str
    prompt: str
    model_answer: str
    baseline_answer: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Game:
    """One judged game.

    Attributes:
        id: the comparison's (or answer's) id.
        first: which side was shown first (`model` for single answers).
        template: template name.
        verdict: the parsed verdict, as seen by the judge (A is the side shown first).
        raw: the raw verdict text of the last attempt; '' when not asked, since identical texts tie.
    """

    id: str
    first: Side
    template: str
    verdict: Verdict
    raw: str

    @property
    def label_for_model(self) -> str | None:
        """Returns the label with the model as A; None when unreadable or a number."""
        if not isinstance(self.verdict, str):
            return None
        return self.verdict if self.first == "model" else _MIRROR[self.verdict]

    @property
    def value(self) -> float | None:
        """Returns the number of a verdict; None when unreadable or a label."""
        return None if isinstance(self.verdict, str) else self.verdict

    @property
    def preference_for_model(self) -> float:
        """Returns the soft preference in [1, 2], 2 = the model wins; NaN when unreadable or not soft."""
        if self.value is None:
            return math.nan
        return 3.0 - self.value if self.first == "model" else self.value

    @property
    def score_for_model(self) -> float:
        """Returns 1 if the model wins, .5 for a tie, 0 if it loses (soft preferences against 1.5); NaN if invalid."""
        label = self.label_for_model
        if label is not None:
            return _SCORE_OF_A[label]
        preference = self.preference_for_model
        if math.isnan(preference):
            return math.nan
        return 0.5 if preference == 1.5 else float(preference > 1.5)


def recorded_game(row: Mapping[str, Any]) -> Game:
    """Returns the game that a row of judgements.jsonl records, whose label is that of the model as A."""
    label = row["label"] if row["first"] == "model" or row["label"] is None else _MIRROR[row["label"]]
    verdict = label if row["value"] is None else float(row["value"])
    return Game(str(row["id"]), row["first"], row["template"], verdict, str(row["raw"]))


#: Verdict on two identical texts by template.
_TIES: dict[str, Verdict] = {
    "alpaca_eval": 1.5, "arena_hard": "A=B", "pairwise": "N", "ranking": "N", "output_pair": "N",
}  # fmt: skip


def _ask(judge: Judge, requests: Sequence[JudgeRequest], retries: int) -> list[tuple[Verdict, str]]:
    """Returns verdicts with their texts; what cannot be parsed is asked again, at most `retries` more times."""
    results: list[tuple[Verdict, str]] = [(None, "")] * len(requests)
    for attempt in range(retries + 1):
        pending = [place for place, (verdict, _) in enumerate(results) if verdict is None]
        if not pending:
            break
        batch = [requests[place] for place in pending]
        if attempt:
            batch = [replace(one, meta={**one.meta, "attempt": attempt}) for one in batch]
        texts = judge.answer(batch)
        if len(texts) != len(batch):
            raise JudgeError(f"judge '{judge.name}' answered {len(texts)} of {len(batch)} requests")
        for place, text in zip(pending, texts, strict=True):
            results[place] = (TEMPLATES[requests[place].template].parse(text), text)
    return results


def drawn_order(prompt: str) -> Side:
    """Returns the side that is shown first: a fair coin of the prompt alone, so every model meets the same orders.

    Source: AlpacaEval 2.0, which switches the two outputs at random with the instruction as random seed.
    """
    digest = hashlib.sha256(f"0/{prompt}".encode()).digest()
    return "model" if digest[0] % 2 else "baseline"


def play_games(
    judge: Judge,
    comparisons: Sequence[JudgedPair],
    template: str,
    *,
    orders: Sequence[Side] | Literal["drawn"] = ("baseline", "model"),
    retries: int = 2,
) -> list[Game]:
    """Returns the games of every comparison, grouped by comparison; identical texts tie without asking.

    Args:
        judge: who answers.
        comparisons: pairs with unique ids.
        template: a pairwise template.
        orders: which side is shown first, per game; `drawn` plays one game in the order of `drawn_order`.
        retries: how often an unparsable verdict is asked again, as another `attempt` in the request's meta; afterwards
            the game is invalid.

    Raises:
        JudgeError: a judge that miscounts.
    """
    requests: list[JudgeRequest] = []
    asked: list[tuple[int, Side]] = []
    games: list[Game] = []
    for comparison in comparisons:
        for first in (drawn_order(comparison.prompt),) if orders == "drawn" else orders:
            games.append(Game(comparison.id, first, template, _TIES[template], ""))
            if comparison.model_answer == comparison.baseline_answer:
                continue
            pair = (comparison.model_answer, comparison.baseline_answer)
            asked.append((len(games) - 1, first))
            requests.append(
                JudgeRequest(
                    id=f"{comparison.id}/{first}-first",
                    prompt=comparison.prompt,
                    answers=pair if first == "model" else pair[::-1],
                    template=template,
                    meta=comparison.meta,
                )
            )
    for (slot, first), (verdict, raw) in zip(asked, _ask(judge, requests, retries), strict=True):
        games[slot] = Game(games[slot].id, first, template, verdict, raw)
    return games


def grade_answers(judge: Judge, requests: Sequence[JudgeRequest], *, retries: int = 2) -> list[Game]:
    """Has single answers graded (MT-Bench); one game each."""
    return [
        Game(request.id, "model", request.template, verdict, raw)
        for request, (verdict, raw) in zip(requests, _ask(judge, requests, retries), strict=True)
    ]


def combine_orders(games: Sequence[Game], rule: Literal["sum", "agreement"] = "sum") -> dict[str, float]:
    """Returns one score of each comparison by id: 1 a win, .5 a tie, 0 a loss, NaN with an unreadable game.

    Args:
        games: games of any number of comparisons, in any order.
        rule: `sum` (PAR): above half of the points wins, exactly half is a tie; `agreement` (ALARM): a win or a loss
            only if every order says so, otherwise a tie.
    """
    by_id: dict[str, list[float]] = {}
    for game in games:
        by_id.setdefault(game.id, []).append(game.score_for_model)
    combined = {}
    for id_, scores in by_id.items():
        total, half = sum(scores), len(scores) / 2
        score = 0.5 if total == half else float(total > half)
        if rule == "agreement":
            score = scores[0] if min(scores) == max(scores) else 0.5
        combined[id_] = math.nan if math.isnan(total) else score
    return combined


def win_rate_of_scores(scores: Iterable[float]) -> dict[str, float]:
    """Returns the win rate in percent with its standard error; a tie is half a win (PAR).

    Returns:
        {"": the rate, _se, _invalid}; the rate is NaN without a valid score, the standard error (ddof 1, percent) below
        two of them.
    """
    count = Counter("invalid" if math.isnan(score) else score for score in scores)
    known = [score for score in (1.0, 0.0, 0.5) for _ in range(count[score])]
    n = len(known)
    mean = sum(known) / n if n else math.nan
    spread = math.sqrt(sum((s - mean) ** 2 for s in known) / (n - 1) / n) if n > 1 else math.nan
    return {"": 100.0 * mean, "_se": 100.0 * spread, "_invalid": count["invalid"]}
