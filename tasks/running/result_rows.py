"""Rows of the JSON Lines files in `result/` folders that several stages read, one type for each kind.

A row of data (`Prompt`, `PreferencePair`, `Question`) may hold further fields of its source.
"""

from typing import Any, NotRequired, TypedDict

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


class PooledAnswers(TypedDict):
    """A row of a pool's responses.jsonl: a greedy answer and several sampled ones."""

    benchmark: str
    id: str
    prompt: str
    meta: dict[str, Any]
    greedy: str
    samples: list[str]
    messages: NotRequired[list[dict[str, str]]]
