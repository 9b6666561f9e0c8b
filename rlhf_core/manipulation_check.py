"""Manipulation check: what each dial does to the world's data, told without any trained model.

    python -m rlhf_core.manipulation_check --seed 7

Every line has one end of a dial and a measure of the assumption that the dial is about: a share that is 1 where the
assumption is wholly true, or a number of clauses. All are measured on drawn data, so they say what was made, not what
was asked for.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.fidelity import boundary_scores
from rlhf_core.reasoning.rewriting import WrongSolution
from rlhf_core.testbed.annotator import Annotator, bayes_ceiling
from rlhf_core.testbed.arithmetic import ArithmeticConfig
from rlhf_core.testbed.calibration import calibrated_temperature
from rlhf_core.testbed.dials import Dials
from rlhf_core.testbed.grammar import FAMILIES, USUAL, read
from rlhf_core.testbed.longform import LongFormConfig, LongFormWorld
from rlhf_core.testbed.oracle import OracleTeacher, first_error
from rlhf_core.testbed.reasoning import Reasoning, ReasoningConfig
from rlhf_core.testbed.rewards import FACT_KINDS, LATE_FACTORS, Clause, score, total
from rlhf_core.testbed.world import World, WorldConfig

#: Responses and pairs that a measure is taken on.
ROWS = 1500
#: (world, seed, responses) -> what its data show.
Measure = Callable[[World, int, int], float]


@dataclass(frozen=True)
class DialMeasure:
    """One end of a dial and what was measured there.

    Attributes:
        dial, setting: the dial and its end.
        measure: name of the measure.
        value: what it is in the world's data.
    """

    dial: str
    setting: str
    measure: str
    value: float


def parsed(world: World, seed: int, n: int) -> list[tuple[dict[str, Any], list[Clause], float]]:
    """Returns supervised examples with their clauses and true rewards."""
    rows = world.sft_examples(n, seed)
    return [(row, world.clauses(row["meta"], row["response"]), row["meta"]["true"]) for row in rows]


def explained(true: Sequence[float], by: Sequence[float]) -> float:
    """Returns the share of variance of true rewards that is linear in another number of each response."""
    return float(np.corrcoef(true, by)[0, 1] ** 2)


def explained_by(number: Callable[[list[Clause]], float]) -> Measure:
    """Returns the measure of the true reward's variance that a number of a response's clauses explains."""

    def measure(world: World, seed: int, n: int) -> float:
        found = parsed(world, seed, n)
        return explained([true for *_, true in found], [number(clauses) for _, clauses, _ in found])

    return measure


def requested(clauses: list[Clause]) -> float:
    """Returns the mean reward of requested facts, 0 without any."""
    return mean([clause.reward for clause in clauses if clause.kind.startswith("requested")] or [0.0])


def clauses_per_response(world: World, seed: int, n: int) -> float:
    """Returns the mean number of clauses of a response."""
    return mean(len(clauses) for _, clauses, _ in parsed(world, seed, n))


def decided_later(world: World, seed: int, n: int) -> float:
    """Returns the share of facts whose reward a later clause decides."""
    facts = late = 0
    for _, clauses, _ in parsed(world, seed, n):
        kinds = [clause.kind for clause in clauses]
        last = next((place for place, kind in enumerate(kinds) if kind in LATE_FACTORS), 0)
        facts += sum(kind in FACT_KINDS for kind in kinds)
        late += sum(kind in FACT_KINDS for kind in kinds[:last])
    return late / facts


def known_at_once(world: World, seed: int, n: int) -> float:
    """Returns the share of variance of the true reward that is known at the end of each clause.

    It is what the clauses are worth as each of them ends, the clauses behind it unread; only whether a closing is the
    last clause is taken as known.
    """
    values = []
    for row, _, true in parsed(world, seed, n):
        located = read(row["response"], world.config.dials.families)
        at_once = []
        for place, item in enumerate(located):
            late = item.statement.kind in LATE_FACTORS
            said = score(located[: place + 1], row["meta"], world.knowledge, world.config.rewards)
            closes = item.statement.kind == "closing" and place < len(located) - 1
            kept = replace(said[-1], reward=0.0) if late else said[-1]
            at_once.append(replace(kept, reward=world.config.rewards.misplaced_closing) if closes else kept)
        values.append((true, total(at_once, world.config.rewards, world.config.dials)))
    return explained([true for true, _ in values], [value for _, value in values])


def boundary_agreement(world: World, seed: int, n: int, cut: Callable[[str], list[int]]) -> float:
    """Returns the F1 of cuts against the clauses that the world wrote."""
    rows = world.sft_examples(n, seed)
    true = [[start for start, *_ in row["meta"]["clauses"]] for row in rows]
    return boundary_scores([cut(row["response"]) for row in rows], true).f1


def ceiling(world: World, seed: int, n: int, annotator: Annotator) -> float:
    """Returns the Bayes ceiling of an annotator's labels."""
    return bayes_ceiling(world.preference_pairs(n, seed, annotator), annotator)


def label_accuracy(world: World, seed: int, n: int, annotator: Annotator) -> float:
    """Returns the share of pairs with a true margin whose label is that of the true reward."""
    margins = [
        row["meta"]["true_chosen"] - row["meta"]["true_rejected"] for row in world.preference_pairs(n, seed, annotator)
    ]
    return mean(margin > 0 for margin in margins if margin)


def pairs_in_usual_wordings(world: World, seed: int, n: int) -> float:
    """Returns the share of the facts of compared responses whose wordings the supervised mixture has."""
    usual = told = 0
    for row in world.preference_pairs(n, seed):
        for side in ("chosen", "rejected"):
            facts, known = (
                sum(item.statement.kind == "fact" for item in read(row[side], families))
                for families in (world.config.dials.families, USUAL)
            )
            told, usual = told + facts, usual + known
    return usual / told


def aspect_accuracy(world: LongFormWorld, seed: int, n: int, aspect: str, error: float) -> float:
    """Returns the share of an aspect's labels that are right."""
    if aspect == "completeness":
        rows = world.preference_pairs(n, seed, aspect=aspect, error=error)
        metas = ((row["meta"], row["chosen"], row["rejected"]) for row in rows)
        return mean(world.completeness(meta, good) > world.completeness(meta, bad) for meta, good, bad in metas)
    told = [row["labels"][aspect] for row in world.labelled_answers(n, seed, errors={aspect: error})]
    true = [row["labels"][aspect] for row in world.labelled_answers(n, seed)]
    return mean(a == b for one, other in zip(told, true, strict=True) for a, b in zip(one, other, strict=True))


#: Dial, its ends (settings of `Dials`), and what is measured at both.
ENDS: tuple[tuple[str, tuple[dict[str, Any], ...], dict[str, Measure]], ...] = (
    (
        "aggregation",
        ({}, {"aggregation": "mean"}, {"aggregation": "weighted", "emphasis": 9.0}),
        {
            "explained_by_sum": explained_by(lambda clauses: sum(clause.reward for clause in clauses)),
            "explained_by_mean": explained_by(lambda clauses: mean(clause.reward for clause in clauses)),
            "explained_by_requested": explained_by(requested),
        },
    ),
    ("clauses", ({"clauses": 4}, {"clauses": 8}), {"clauses_per_response": clauses_per_response}),
    ("late", ({"late": 0.0}, {"late": 1.0}), {"decided_later": decided_later, "known_at_once": known_at_once}),
    ("pairs", ({"pairs": "usual"}, {"pairs": "other"}), {"pairs_in_usual_wordings": pairs_in_usual_wordings}),
)

#: Annotators without a flaw and with each of them at the strength of the laboratory of hacking.
FLAWS: dict[str, Annotator] = {
    "none": Annotator(),
    "length": Annotator(length_bias=2.0),
    "flattery": Annotator(flattery_bias=3.0),
    "keyword": Annotator(keyword_bias=6.0),
    "repetition": Annotator(repetition_bias=3.0),
}


def findings(seed: int = 0, n: int = ROWS) -> list[DialMeasure]:
    """Returns the manipulation check of the worlds of one seed.

    Args:
        seed: of facts, draws and labels.
        n: responses and pairs of each measure.

    Raises:
        RecipeError: fewer than 50 responses, on which no share can be told.
    """
    if n < 50:
        raise RecipeError(f"rows is {n}; the measures need at least 50 responses")
    return [*_of_dials(seed, n), *_of_labels(seed, n), *_of_aspects(seed, n), *_of_questions(seed, n)]


def _of_dials(seed: int, n: int) -> Iterable[DialMeasure]:
    for dial, ends, measures in ENDS:
        for settings in ends:
            world = World(WorldConfig(seed=seed, dials=Dials(**settings)))
            setting = ", ".join(f"{name} {value}" for name, value in settings.items()) or "default"
            yield from (DialMeasure(dial, setting, name, each(world, seed, n)) for name, each in measures.items())
            annotator = Annotator(temperature=calibrated_temperature(world), seed=seed)
            yield DialMeasure(dial, setting, "ceiling", ceiling(world, seed, n, annotator))
    world = World(WorldConfig(seed=seed))
    cuts: dict[str, Callable[[str], list[int]]] = {
        "gold": lambda text: [item.start for item in read(text, tuple(FAMILIES))],
        "sentence marks": lambda text: [0, *(found.end() for found in re.finditer(r"[.!?] ", text))],
    }
    for setting, cut in cuts.items():
        yield DialMeasure("boundaries", setting, "boundary_agreement", boundary_agreement(world, seed, n, cut))


def _of_labels(seed: int, n: int) -> Iterable[DialMeasure]:
    world = World(WorldConfig(seed=seed))
    settings: list[tuple[str, str, Annotator, dict[str, Any]]] = [
        *(("flaw", name, flawed, {"annotator": flawed}) for name, flawed in FLAWS.items()),
        *(("annotator's ceiling", f"{target:g}", Annotator(), {"target": target}) for target in (0.6, 0.95)),
        *(("flipped", f"{share:g}", Annotator(flipped=share), {}) for share in (0.0, 0.3)),
    ]
    for dial, setting, plain, calibration in settings:
        annotator = replace(plain, temperature=calibrated_temperature(world, **calibration), seed=seed)
        if dial != "flipped":
            yield DialMeasure(dial, setting, "ceiling", ceiling(world, seed, n, annotator))
        yield DialMeasure(dial, setting, "label_accuracy", label_accuracy(world, seed, n, annotator))


def _of_aspects(seed: int, n: int) -> Iterable[DialMeasure]:
    world = LongFormWorld(LongFormConfig(seed=seed))
    for aspect in ("relevance", "factuality", "completeness"):
        for error in (0.0, 0.4):
            accuracy = aspect_accuracy(world, seed, n, aspect, error)
            yield DialMeasure("aspect_errors", f"{aspect} {error:g}", "aspect_accuracy", accuracy)


def _of_questions(seed: int, n: int) -> Iterable[DialMeasure]:
    for slip in (0.0, 0.3):
        rows = Reasoning(ReasoningConfig(ArithmeticConfig(), slip=slip), seed).examples("mathematics", n, seed)
        yield DialMeasure("slip", f"{slip:g}", "solutions_right", mean(row["meta"]["right"] for row in rows))
    questions = Reasoning(ReasoningConfig(ArithmeticConfig()), seed).questions("mathematics", n, seed)
    for noise in (0.0, 0.5):
        yield DialMeasure("teacher's noise", f"{noise:g}", "rewrites_right", teacher_accuracy(questions, noise, seed))
    for share in (0.0, 0.5):
        tasks = World(WorldConfig(seed=seed, wrong_share=share)).task_examples(n, seed)
        yield DialMeasure("wrong_share", f"{share:g}", "solutions_right", mean(row["meta"]["right"] for row in tasks))


def teacher_accuracy(questions: Sequence[dict[str, Any]], noise: float, seed: int) -> float:
    """Returns the share of right rewrites that the oracle makes of other questions' solutions."""
    wrong = [
        WrongSolution(asked["id"], asked, other["solution"])
        for asked, other in pairwise(questions)
        if first_error(asked["meta"]["steps"], other["solution"]) is not None
    ]
    corrected = OracleTeacher(noise=noise, seed=seed).correct(wrong)
    right = zip(wrong, corrected, strict=True)
    return mean(first_error(each.question["meta"]["steps"], made.rewrite) is None for each, made in right)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the manipulation check, one line for each finding."""
    parser = argparse.ArgumentParser(prog="python -m rlhf_core.manipulation_check", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of facts, draws and labels (0)")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"responses and pairs of each measure ({ROWS})")
    options = parser.parse_args(arguments)
    for found in findings(options.seed, options.rows):
        print(f"{found.dial:20s} {found.setting:34s} {found.measure:24s} {found.value:.3f}")


if __name__ == "__main__":
    main()
