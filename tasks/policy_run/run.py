"""A policy run: what it reads, its models, its evaluator, and what it notes while it trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch

from rlhf_core import distributed
from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import DataError, NumericsError
from rlhf_core.evaluation.benchmark_names import DIALOGUE_BENCHMARKS
from rlhf_core.models.lora import Adapter
from rlhf_core.models.policy import Policy
from rlhf_core.recipe import Recipe
from rlhf_core.stepper import freeze
from rlhf_core.supervised.objectives import reference_logprobs
from rlhf_core.training_state import State
from tasks.evaluating.policies import Evaluator
from tasks.evaluating.sft_comparison import SftComparison, check_answered, compare_with_sft
from tasks.evaluating.solving import graded, test_sets
from tasks.graph.results import DIVERGED_FILE
from tasks.params.evaluation import EvaluationConfig
from tasks.params.policy import PolicyScale
from tasks.policy_run.hacking_watch import HackingWatch
from tasks.policy_run.proxies import ProxyReader
from tasks.policy_run.reward import RewardInputs
from tasks.policy_run.solutions import SolutionFolders
from tasks.running.artifacts import first_rows, read_jsonl, write_json
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.loading import load_encoder, load_judge, load_policy, load_world
from tasks.running.result_rows import Generation, HackingPoint, Metrics, Rollout, TokenCredit

#: Benchmarks whose answers a judge compares with those of the benchmark's baseline.
JUDGED_AGAINST_BASELINE = ("alpaca", "arena", "ood")
#: Parts that a run notes while it trains, and a checkpoint keeps.
_NOTED = ("history", "evaluations", "rollouts", "lengths", "phases")


@dataclass(frozen=True)
class PolicyInputs:
    """Results of the stages above a row: arguments of the stage `policy`."""

    data: Path
    sft: Path
    reward: RewardInputs
    solutions: SolutionFolders
    holistic: Annotated[Path | None, "result of `reward_model` that the selection compares with"] = None


@dataclass(frozen=True)
class RowTraining:
    """A row's training at a scale.

    Attributes:
        recipe: the row.
        settings: of its optimiser at the scale.
        inputs: results of the stages above it.
        where: names row and settings in messages.
    """

    recipe: Recipe
    settings: PolicyScale
    inputs: PolicyInputs
    seed: int
    where: str


@dataclass
class PolicyRun:
    """State shared by training and its periodic evaluation, and what was measured at the end.

    Attributes:
        row: what is trained.
        policy: being trained.
        reference: the frozen SFT model; with an adapter the policy without it.
        encoder: tokenizer and template.
        evaluator: benchmarks.
        sft_answers: the SFT model's generations.
        adapter: the policy's low-rank adapters, if only those are trained.
        history, rollouts: rows of history.jsonl and rollouts.jsonl.
        evaluations: rows of checkpoints.jsonl: step, KL, win rate and lengths; no weights.
        lengths: tokens per segment in the last rollout batch.
        phases: speed and memory of each step.
        proxies: reads proxy rewards of evaluations, where they are asked for.
        watch: the alarms; None of a supervised recipe.
        credit: what tokens of wrong sampled solutions are credited with, where there are any.
        hacking: rows of hacking.jsonl, where the settings ask for it.
    """

    row: RowTraining
    policy: Policy
    reference: Policy
    encoder: Encoder
    evaluator: Evaluator
    sft_answers: list[Generation]
    adapter: Adapter | None = None
    history: list[Metrics] = field(default_factory=list)
    evaluations: list[Metrics] = field(default_factory=list)
    rollouts: list[Rollout] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    phases: list[Metrics] = field(default_factory=list)
    proxies: ProxyReader | None = None
    watch: HackingWatch | None = None
    credit: list[TokenCredit] | None = None
    hacking: list[HackingPoint] = field(default_factory=list)

    @property
    def checkpoint_benchmark(self) -> str:
        """Returns the benchmark on whose prompts the policy is evaluated while it trains."""
        return self.row.settings.checkpoint_benchmark

    def state_dict(self) -> State:
        """Returns the notes of training so far."""
        return {name: getattr(self, name) for name in _NOTED}

    def load_state_dict(self, state: State) -> None:
        for name in _NOTED:
            setattr(self, name, state[name])

    @torch.no_grad()
    def kl(self, rows: list[Generation], batch: int = 64) -> float:
        """Nats per response: mean of log pi - log pi_ref over first-turn answers that the policy just gave."""
        names = {row["benchmark"] for row in rows} & set(DIALOGUE_BENCHMARKS)
        items = {item["id"]: item for name in names for item in self.evaluator.items(f"benchmarks/{name}")}
        sequences = []
        for row in rows:
            known = items.get(row["id"], {})
            asked = {"prompt": row["prompt"], **{k: v for k, v in known.items() if k == "messages"}}
            sequences.append(self.evaluator.encoder.sequence(asked, row["response"]))
        policy, reference = (reference_logprobs(model, sequences, batch) for model in (self.policy, self.reference))
        return float((policy - reference).mean())

    @property
    def last_step(self) -> int:
        """Returns the last step that was trained."""
        return int(self.history[-1]["step"])

    @property
    def kl_sets(self) -> tuple[str, ...]:
        """Returns benchmarks whose answers the KL is of: AlpacaEval's prompts, else the questions."""
        return ("alpaca",) if self.evaluator.items("benchmarks/alpaca") else tuple(test_sets(self.evaluator.data))

    @property
    def has_win_rates_while_training(self) -> bool:
        """Returns whether evaluations while training compare answers with the SFT model's: by true rewards, or by a
        judge that the settings let do so."""
        judged = self.evaluator.judge is not None and self.evaluator.config.judge_checkpoints
        return self.evaluator.world is not None or judged

    def evaluate(self, step: int, prompts: int) -> dict[str, float]:
        """Measures and notes an evaluation on some prompts; returns each one's score."""
        answers = self.evaluator.generate_dialogue(self.policy, self.checkpoint_benchmark, prompts)
        compared = compare_with_sft(self.evaluator, answers, self.sft_answers, (self.checkpoint_benchmark,))
        return self.note_evaluation(step, answers, compared)

    def note_evaluation(self, step: int, rows: list[Generation], compared: SftComparison) -> dict[str, float]:
        """Notes answers of a step's policy, compared with the SFT model's; returns each one's score."""
        benchmark = self.checkpoint_benchmark
        chars = {row["id"]: row["n_chars"] for row in self.sft_answers if row["benchmark"] == benchmark}
        longer = sum(row["n_chars"] - chars[row["id"]] for row in rows) / max(1, len(rows))
        noted: Metrics = {"step": step, "kl": self.kl(rows), "n": len(rows), "chars_over_sft": longer}
        if (tally := compared.tallies.get(benchmark)) is not None:
            noted |= tally.metrics("win_rate_vs_sft", judged=bool(compared.win_rate_facts))
        self.evaluations.append(noted if self.proxies is None else noted | self.proxies.read(rows))
        return dict(compared.scores(benchmark))


def start_run(row: RowTraining, evaluation: EvaluationConfig) -> PolicyRun:
    """Returns a row's run at its start: policy and frozen reference from the SFT model, and the evaluator.

    With LoRA settings both are one model, whose adapters alone are trained and switched off for the reference.
    """
    data, sft, lora = row.inputs.data, row.inputs.sft, row.recipe.lora
    encoder, world = load_encoder(data, sft / "model"), load_world(data)
    policy = load_policy(sft / "model", encoder)
    adapter = None if lora is None else Adapter(policy.model, lora, row.seed)
    reference: Policy = load_policy(sft / "model", encoder) if adapter is None else adapter.reference(policy)
    evaluator = Evaluator(data, encoder, evaluation, load_judge(evaluation.judge, world), world)
    answers = read_jsonl(sft / "generations.jsonl")
    run = PolicyRun(row, policy, reference, encoder, evaluator, answers, adapter)
    if evaluator.judge is not None:
        check_comparable(evaluator, answers, run.checkpoint_benchmark)
    if adapter is None:
        freeze(reference.model)
    policy.model.eval()
    return run


def check_comparable(evaluator: Evaluator, sft: list[Generation], checkpoint_benchmark: str) -> None:
    """Refuses, before anything is trained, prompts without an answer that the judge needs.

    Raises:
        DataError: a prompt that the SFT model did not answer, or that has no answer of the benchmark's baseline.
    """
    for name in DIALOGUE_BENCHMARKS:
        items = evaluator.items(f"benchmarks/{name}") if evaluator.config.has(name) else []
        against = items if evaluator.config.judge_baseline and name in JUDGED_AGAINST_BASELINE else []
        empty = [item["id"] for item in against if not item["baseline"][0].strip()]
        if empty:
            raise DataError(
                f"{len(empty)} of {len(items)} prompts have no reference answer, the first is '{empty[0]}'",
                file=str(evaluator.data / "benchmarks" / f"{name}.jsonl"),
                field="baseline",
                remedy="Give the benchmark's reference answers, or leave the benchmark out of the evaluation's 'only'",
            )
        if evaluator.world is None and name in (*evaluator.config.over_sft_benchmarks, checkpoint_benchmark):
            answered = {row["id"] for row in sft if row["benchmark"] == name}
            check_answered(items, answered, name)


def question_accuracies(evaluator: Evaluator, policy: Policy, count: int) -> dict[str, float]:
    """Returns the percent of right greedy answers to the first `count` training questions; empty where the data has
    none."""
    known = evaluator.items("questions")
    asked = first_rows(known, count, "checkpoint_prompts", evaluator.data / "questions.jsonl") if known else []
    if not asked:
        return {}
    answers = evaluator.greedy_answers(policy, asked)
    right = [graded(question, text)["right"] for question, (text, _) in zip(asked, answers, strict=True)]
    return {"train_accuracy": 100 * sum(right) / len(right)}


@contextmanager
def noting_divergence(out: Path, run: PolicyRun) -> Iterator[None]:
    """Writes `<out>/diverged.json` with the run's finite evaluations if numbers diverge, and lets the error pass: the
    stage has no result."""
    if not distributed.rank():
        (out / DIVERGED_FILE).unlink(missing_ok=True)
    try:
        yield
    except NumericsError as error:
        if not distributed.rank():
            finite = [row for row in run.evaluations if all(map(math.isfinite, row.values()))]
            write_json(out / DIVERGED_FILE, {"reason": str(error), "evaluations": finite})
        raise


#: Function that trains a started run and returns its metrics.
Learn = Callable[[PolicyRun, RunCheckpoints], Metrics]
