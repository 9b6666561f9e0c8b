"""Rows of the JSON Lines files in `result/` folders, one type for each kind: stages write them and read them by it.

A row of data (`Prompt`, `PreferencePair`, `Question`, `BenchmarkItem`) may hold further fields of its source.
"""

import sys
from collections.abc import Collection
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NotRequired, TypedDict, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from rlhf_core.errors import DataError
from tasks.running.artifacts import read_jsonl

#: Flat numbers by name: a step of history.jsonl or phases.jsonl, or a whole metrics.json.
Metrics = dict[str, float]


class Prompt(TypedDict):
    """A row of prompts.jsonl."""

    prompt: str
    id: NotRequired[str]
    meta: NotRequired[dict[str, Any]]
    messages: NotRequired[list[dict[str, str]]]
    solution: NotRequired[str]


class PreferencePair(TypedDict):
    """A row of preference.<split>.jsonl."""

    prompt: str
    chosen: str
    rejected: str
    id: NotRequired[str]
    meta: NotRequired[dict[str, Any]]


class Question(TypedDict):
    """A row of questions.jsonl: a question with its solution and answer, and in `meta` its right lines."""

    id: str
    prompt: str
    solution: str
    answer: Any
    meta: NotRequired[dict[str, Any]]


class Example(TypedDict):
    """A row of examples.jsonl in a data set: a response whose rewards are drawn.

    Attributes:
        kind: normal, repetition or code.
        true_clauses: (start, end, kind, reward) of each clause, where they are known.
    """

    id: str
    prompt: str
    response: str
    kind: str
    true_clauses: list[Any]


class ColouredExample(Example):
    """A row of examples.jsonl of a reward model: the response with the reward of every token and segment."""

    label: str
    tokens: list[str]
    rewards: list[float | None]
    segments: list[list[float]]
    weights: NotRequired[list[float]]
    segment_rewards: NotRequired[list[float]]


class BenchmarkItem(TypedDict):
    """A row of benchmarks/<name>.jsonl: the turns, and for each a baseline answer and what is known of it."""

    id: str
    turns: list[str]
    baseline: list[str]
    metas: list[dict[str, Any]]
    messages: NotRequired[list[dict[str, str]]]


class Generation(TypedDict):
    """A row of generations.jsonl: a policy's answer to one turn of a benchmark's item.

    Attributes:
        baseline, meta: of a dialogue's answer: what it is compared with, and what is known of the prompt.
        true_reward: None where it is not known.
        right: of an item with a right answer; multiple choice has it without a response.
        category, references: of MT-Bench, and the reference answer of each turn where its category has them.
        extracted, steps, first_error: of a solution: its answer, its steps, and the first wrong one.
    """

    benchmark: str
    id: str
    turn: int
    prompt: NotRequired[str]
    response: NotRequired[str]
    baseline: NotRequired[str]
    meta: NotRequired[dict[str, Any]]
    n_chars: NotRequired[int]
    n_tokens: NotRequired[int]
    true_reward: NotRequired[float | None]
    right: NotRequired[bool]
    category: NotRequired[str]
    references: NotRequired[list[str]]
    extracted: NotRequired[str | None]
    steps: NotRequired[int]
    first_error: NotRequired[int | None]


class Grade(TypedDict):
    """A solution's extracted answer, whether it is right, its steps, and the first wrong one where that is known."""

    extracted: str | None
    right: bool
    steps: int
    first_error: NotRequired[int | None]


class Judgement(TypedDict):
    """A row of judgements.jsonl: a judge's verdict on one answer or comparison.

    Attributes:
        first: who was shown first.
        raw: the judge's own words.
        preference, label, value: as the template's verdict has them; None where it has none.
        reference: 'sft' where the other answer is the SFT model's; the benchmark's own where there is none.
    """

    benchmark: str
    id: str
    first: str | None
    template: str
    raw: str
    valid: bool
    preference: float | None
    label: str | None
    value: float | None
    reference: NotRequired[str]


class OpponentJudgement(TypedDict):
    """A row of judgements.jsonl of a second judge: a verdict on one answer against an opponent's."""

    opponent: str
    id: str
    first: str | None
    raw: str
    valid: bool


class Rollout(TypedDict):
    """A row of rollouts.jsonl: a rollout of a policy run with the reward of every token and its breakdown."""

    step: int
    id: str | None
    prompt: str
    response: str
    tokens: list[str]
    rewards: list[float]
    breakdown: dict[str, list[float]]
    advantages: list[float]
    true_reward: float | None


class HackingPoint(TypedDict):
    """A row of hacking.jsonl: proxy, win rate in percent and KL of one evaluation."""

    step: int
    proxy: float
    proxy_error: float
    win_rate: float
    kl: float | None


class TokenCredit(TypedDict):
    """A row of credit.jsonl: what each token of a wrong solution was credited with, and which are truly mistaken."""

    id: str
    prompt: str
    response: str
    tokens: list[str]
    credit: list[float]
    mistaken: list[bool]
    rewrite: str
    unclipped: NotRequired[list[float]]


class SampledSolution(TypedDict):
    """A row of samples.jsonl: a graded solution, with its tokens as drawn; `gold` marks a rehearsal's right answer."""

    id: str
    question_id: str
    prompt: str
    solution: str
    answer: Any
    prediction: str
    extracted: str | None
    correct: bool
    token_ids: NotRequired[list[int]]
    gold: NotRequired[bool]


class VerifiedRewrite(TypedDict):
    """A row of rewrites.jsonl or grm_rewrites.jsonl: a correction of a wrong solution, accepted or refused."""

    id: str
    question_id: str
    prompt: str
    prediction: str
    first_error_step: int | None
    rewrite: str
    accepted: bool
    reason: str
    edit_distance: int
    gold: NotRequired[bool]


class RewardedSolution(TypedDict):
    """A row of token_rewards.jsonl: the reward of every token that was drawn, and the probability behind it."""

    id: str
    question_id: str
    prompt: str
    prediction: str
    token_ids: list[int]
    rewards: list[float]
    probabilities: list[float]


class PooledAnswers(TypedDict):
    """A row of a pool's responses.jsonl: a greedy answer and several sampled ones."""

    benchmark: str
    id: str
    prompt: str
    meta: dict[str, Any]
    greedy: str
    samples: list[str]
    messages: NotRequired[list[dict[str, str]]]


class BenchmarkPair(TypedDict):
    """A pair of a benchmark of reward models."""

    id: str
    prompt: str
    chosen: str
    rejected: str
    section: str
    subset: str


R = TypeVar("R")


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Returns the rows of a file in a `result/` folder.

    Args:
        path: the file.
        kind: the rows' type, of this module.

    Raises:
        DataError: a row without a field that the type requires.
    """
    rows = read_jsonl(path)
    required = cast(frozenset[str], kind.__required_keys__)  # type: ignore[attr-defined]
    for number, row in enumerate(rows, start=1):
        for name in sorted(required - row.keys()):
            raise DataError(
                f"the row has no '{name}'", file=str(path), row=number, field=name, remedy="Run its stage again"
            )
    return cast(list[R], rows)


def read_checked(path: Path, kind: type[R], needed: Collection[str] | None = None) -> list[R]:
    """Returns the rows of a file in a `result/` folder whose fields have the types that their kind states.

    Args:
        path: the file.
        kind: the rows' type, of this module.
        needed: fields that a row must have; None for those that the type requires.

    Raises:
        DataError: a row that lacks a field, or has a value of another type or a number that is not finite.
    """
    hints, rows = get_type_hints(kind), read_jsonl(path)
    required = set(kind.__required_keys__ if needed is None else needed)  # type: ignore[attr-defined]
    for number, row in enumerate(rows, start=1):
        told = partial(DataError, file=str(path), row=number, remedy="Run its stage again")
        for name in sorted(required - row.keys()):
            raise told(f"the row has no '{name}'", field=name)
        for name, value in row.items():
            if not _fits(value, hints.get(name, Any)):
                raise told(f"{value!r:.60} is not {_described(hints[name])}", field=name)
    return cast(list[R], rows)


def read_numbers(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a history: `step` and finite numbers, or null where a step has none.

    Raises:
        DataError: a row without `step`, or another value.
    """
    rows = read_jsonl(path)
    for number, row in enumerate(rows, start=1):
        told = partial(DataError, file=str(path), row=number, remedy="Run its stage again")
        if not _fits(row.get("step"), int):
            raise told(f"{row.get('step')!r:.60} is not the number of a step", field="step")
        for name, value in row.items():
            if not _fits(value, float | None):
                raise told(f"{value!r:.60} is not a number", field=name)
    return rows


def _fits(value: Any, hint: Any) -> bool:
    """Returns whether a value of JSON has a type; a number is finite."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(_fits(one, parts[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(one, parts[1]) for one in value.values())
    if hint in (int, float):
        right = isinstance(value, int) or (hint is float and isinstance(value, float))
        return right and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return hint is Any or (value is None if hint is NoneType else isinstance(value, hint))


def _described(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
