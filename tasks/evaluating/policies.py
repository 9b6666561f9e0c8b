"""Evaluation of a policy on every benchmark of a data set: generate, judge, score.

Used inside the `sft` and `policy` stages and by scheduled re-evaluation. What a data set does not hold (no code
items, no judge) is left out of the metrics, never filled in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core import distributed
from rlhf_core.data.batching import rows_by_length
from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.data.templates import encode_text
from rlhf_core.evaluation import livecodebench
from rlhf_core.evaluation.benchmark_names import (
    CATEGORY_TEMPERATURES,
    CHOICE_TASKS,
    CODE_BENCHMARKS,
    DIALOGUE_BENCHMARKS,
)
from rlhf_core.evaluation.benchmark_scores import arena_win_rate, corpus_bleu, mt_bench_scores, right_choices, win_rate
from rlhf_core.evaluation.evalplus import LIMITS, program_of
from rlhf_core.evaluation.judges.games import (
    Game,
    JudgedPair,
    combine_orders,
    grade_answers,
    play_games,
    win_rate_of_scores,
)
from rlhf_core.evaluation.sandbox import Program, ProgramResult, run_programs
from rlhf_core.models.policy import Policy, pad_rows, sequence_statistics
from rlhf_core.models.sampling import Sampling, generate
from rlhf_core.passes import RowTokens
from rlhf_core.reasoning.grading import extract_answer, is_right
from tasks.evaluating.benchmarks import graded_answers, items_measured, measure_tasks
from tasks.evaluating.solving import answered, solve_tests
from tasks.params.evaluation import EvaluationConfig
from tasks.running.artifacts import first_rows, read_json, read_jsonl
from tasks.running.result_rows import Generation, Judgement, Metrics

if TYPE_CHECKING:
    from rlhf_core.evaluation.judges.templates import Judge
    from rlhf_core.testbed import GoldWorld


@dataclass(frozen=True)
class Evaluation:
    """Metrics, the generations and judgements that they come from, and what published benchmarks were measured on."""

    metrics: dict[str, float]
    generations: list[Generation]
    judgements: list[Judgement]
    benchmarks: Mapping[str, Any] = field(default_factory=dict)


class Evaluator:
    """Evaluates policies on one data set.

    Args:
        data: result of `prepare`.
        encoder: tokenizer and template.
        config: settings.
        judge: answers comparisons; None leaves judged metrics out.
        world: gives true rewards on the testbed.
    """

    def __init__(
        self, data: Path, encoder: Encoder, config: EvaluationConfig, judge: Judge | None, world: GoldWorld | None
    ) -> None:
        self.data, self.encoder, self.config = data, encoder, config
        self.judge, self.world = judge, world
        self._items: dict[str, list[Any]] = {}
        facts = read_json(data / "data.json")
        self.translates, self.instruction = facts.get("task") == "translation", str(facts.get("instruction", ""))

    def items(self, name: str) -> list[Any]:
        """Returns the rows of a data set's file that are evaluated on, read once; none without the file."""
        if name not in self._items:
            path = self.data / f"{name}.jsonl"
            self._items[name] = read_jsonl(path)[: self.config.rows] if path.exists() else []
        return self._items[name]

    def evaluate(self, policy: Policy) -> Evaluation:
        """Evaluates a policy, unchanged, on all benchmarks; `compare_with_sft` compares it with its SFT model."""
        generations: list[Generation] = []
        for name in DIALOGUE_BENCHMARKS:
            if self.config.has(name):
                generations += self.generate_dialogue(policy, name)
        metrics: dict[str, float] = {}
        judgements: list[Judgement] = []
        by_name: dict[str, list[Generation]] = {}
        for row in generations:
            by_name.setdefault(row["benchmark"], []).append(row)
        for name, rows in by_name.items():
            metrics[f"{name}_chars"] = _mean([row["n_chars"] for row in rows])
            metrics[f"{name}_tokens"] = _mean([row["n_tokens"] for row in rows])
            if known := [reward for row in rows if (reward := row["true_reward"]) is not None]:
                metrics["true_reward" if name == "alpaca" else f"{name}_true_reward"] = _mean(known)
        if self.translates and "alpaca" in by_name:
            rows = by_name["alpaca"]
            metrics["bleu"] = corpus_bleu([row["response"] for row in rows], [row["baseline"] for row in rows])
        if (judge := self.judge) is not None:
            asked = by_name if self.config.judge_baseline else {k: v for k, v in by_name.items() if k == "mtbench"}
            judgements, judged = distributed.on_main(lambda: self.judge_dialogue(judge, asked))
            metrics |= judged
        for part, measure in (("choices", self.choices), ("arithmetic", self.arithmetic), ("code", self.code)):
            if self.config.has(part):
                metrics |= measure(policy, generations)
        metrics |= solve_tests(self.data, self.items, lambda asked: self.greedy_answers(policy, asked), generations)
        benchmarks = items_measured(self.data, generations)
        if self.config.has("tasks"):
            found, protocols = measure_tasks(self.data, policy, self.encoder, self.config, generations)
            metrics, benchmarks = metrics | found, benchmarks | protocols
        downstream = [metrics[name] for name in (*CHOICE_TASKS, "gsm8k") if name in metrics]
        if len(downstream) == len(CHOICE_TASKS) + 1:
            metrics["average"] = _mean(downstream)
        finite = {k: v for k, v in metrics.items() if math.isfinite(v)}
        return Evaluation(finite, generations, judgements, benchmarks)

    def generate_dialogue(self, policy: Policy, name: str, limit: int | None = None) -> list[Generation]:
        """Generations of one dialogue benchmark; second turns follow the model's own first answers."""
        file = self.data / "benchmarks" / f"{name}.jsonl"
        items = first_rows(self.items(f"benchmarks/{name}"), limit, "checkpoint_prompts", file)
        config = self.config
        sampling = Sampling(config.max_new_tokens, config.temperature, config.top_p, config.top_k, config.engine)
        rows: list[Generation] = []
        histories: list[list[dict[str, str]]] = [[] for _ in items]
        for turn in range(max((len(item["turns"]) for item in items), default=0)):
            asked = [
                {"prompt": item["turns"][turn], "history": history, "id": item["id"]}
                | ({"messages": item["messages"]} if "messages" in item else {})
                for item, history in zip(items, histories, strict=True)
            ]
            answers = self._dialogue_answers(policy, items, asked, sampling, config.seed + turn)
            for item, history, (text, tokens) in zip(items, histories, answers, strict=True):
                meta = item["metas"][turn]
                row: Generation = {
                    "benchmark": name,
                    "id": item["id"],
                    "turn": turn + 1,
                    "prompt": item["turns"][turn],
                    "response": text,
                    "baseline": item["baseline"][turn],
                    "meta": meta,
                    "n_chars": len(text),
                    "n_tokens": tokens,
                    "true_reward": self.world.true_reward(meta, text) if self.world else None,
                }
                if "category" in item:
                    row["category"] = item["category"]
                if "references" in item:
                    row["references"] = item["references"]
                rows.append(row)
                history += [{"role": "user", "content": item["turns"][turn]}, {"role": "assistant", "content": text}]
        return rows

    def _dialogue_answers(
        self, policy: Policy, items: list[Any], asked: list[Any], sampling: Sampling, seed: int
    ) -> list[tuple[str, int]]:
        """Returns (text, tokens) of one answer to each item; MT-Bench's have the temperature of their category."""
        own = sampling.temperature
        temperatures = [CATEGORY_TEMPERATURES.get(item.get("category", ""), own) for item in items]
        answers: list[tuple[str, int]] = [("", 0)] * len(items)
        for temperature in sorted(set(temperatures)):
            chosen = [i for i, of_item in enumerate(temperatures) if of_item == temperature]
            at = replace(sampling, temperature=temperature)
            made = answer(policy, self.encoder, [asked[i] for i in chosen], at, seed, self.config.batch)
            for i, found in zip(chosen, made, strict=True):
                answers[i] = found
        return answers

    def judge_dialogue(self, judge: Judge, by_name: Mapping[str, list[Generation]]) -> tuple[list[Judgement], Metrics]:
        """Returns judgements and their metrics: AlpacaEval in drawn order, Arena-Hard both ways, MT-Bench ratings."""
        judgements: list[Judgement] = []
        metrics: dict[str, float] = {}
        for name in ("alpaca", "ood"):
            if name in by_name:
                games = play_games(judge, comparisons(by_name[name], self.instruction), "alpaca_eval", orders="drawn")
                judgements += judgement_rows(name, games)
                metrics |= win_rate([game.preference_for_model for game in games], name)
        if "arena" in by_name:
            games = play_games(judge, comparisons(by_name["arena"], self.instruction), "arena_hard")
            judgements += judgement_rows("arena", games)
            metrics |= arena_win_rate(games)
        if "mtbench" in by_name:
            rows = by_name["mtbench"]
            games = grade_answers(judge, graded_answers(rows))
            judgements += judgement_rows("mtbench", games)
            metrics |= mt_bench_scores([(row["turn"], game.value) for row, game in zip(rows, games, strict=True)])
        return judgements, metrics

    @torch.no_grad()
    def likelihoods(self, policy: Policy, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Returns the summed log-probability of each answer (EOS left out) after its prompt."""
        sequences = []
        for prompt, text in zip(prompts, answers, strict=True):
            full = self.encoder.sequence({"prompt": prompt}, text)
            sequences.append(EncodedSequence(full.prompt, full.response[:-1]))
        sums = torch.zeros(len(sequences))
        for chosen in RowTokens.of_sequences(sequences, packed=policy.packs).own_passes(self.config.batch):
            statistics, _ = sequence_statistics(policy, [sequences[i] for i in chosen])
            sums[chosen] = statistics.logprobs.sum(dim=1).float().cpu()
        return [float(value) for value in distributed.merged(sums)]

    def choices(self, policy: Policy, generations: list[Generation]) -> dict[str, float]:
        """Returns the accuracy in percent of every multiple-choice task, by likelihood per character."""
        metrics = {}
        for task in CHOICE_TASKS:
            items = self.items(f"choices/{task}")
            if items:
                right = right_choices(items, partial(self.likelihoods, policy))
                metrics[task] = 100 * _mean(right)
                generations += [
                    {"benchmark": task, "id": row["id"], "turn": 1, "right": one}
                    for row, one in zip(items, right, strict=True)
                ]
        return metrics

    def arithmetic(self, policy: Policy, generations: list[Generation]) -> dict[str, float]:
        """Returns the accuracy in percent on seen and unseen word problems; `gsm8k` is their mean."""
        metrics = {}
        for split in ("seen", "unseen"):
            items = self.items(f"arithmetic.{split}")
            if items:
                rows = self._solve(policy, items, split)
                for item, row in zip(items, rows, strict=True):
                    row["right"] = is_right(extract_answer(row["response"], item), item)
                generations += rows
                metrics[f"arithmetic_{split}"] = 100 * _mean([row["right"] for row in rows])
        if metrics:
            metrics["gsm8k"] = _mean(list(metrics.values()))
        return metrics

    def code(self, policy: Policy, generations: list[Generation]) -> dict[str, float]:
        """Returns pass@1 in percent, each program in a limited process without network."""
        metrics: dict[str, float] = {}
        if not self.config.isolated_code:
            return metrics
        for name in CODE_BENCHMARKS:
            items = self.items(f"functions.{name}")
            if items:
                rows = self._solve(policy, items, name)
                results = distributed.on_main(partial(judged_answers, items, [row["response"] for row in rows]))
                for row, outcome in zip(rows, results, strict=True):
                    row["right"] = outcome.passed
                generations += rows
                metrics[name] = 100 * _mean([float(outcome.passed) for outcome in results])
        return metrics

    def greedy_answers(self, policy: Policy, asked: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
        """Returns the greedy (text, tokens) for each prompt of a task."""
        sampling = Sampling(self.config.task_tokens, temperature=0, engine=self.config.engine)
        return answer(policy, self.encoder, asked, sampling, self.config.seed, self.config.batch)

    def _solve(self, policy: Policy, items: list[Any], name: str) -> list[Generation]:
        """Returns the greedy answers to task items, as generation rows."""
        asked = [{**item, "prompt": item["question"]} for item in items]
        answers = self.greedy_answers(policy, asked)
        return [answered(name, item, *found) for item, found in zip(asked, answers, strict=True)]


def comparisons(rows: Sequence[Generation], instruction: str = "") -> list[JudgedPair]:
    """Returns each answer against its row's `baseline`; `instruction` says the task where prompts alone do not
    (data.json)."""
    return [
        JudgedPair(row["id"], instruction + row["prompt"], row["response"], row["baseline"], {"prompt": row["meta"]})
        for row in rows
    ]


def both_orders(judge: Judge, pairs: Sequence[JudgedPair], template: str) -> tuple[dict[str, float], list[Game]]:
    """Returns ({win rate in percent, ties half, its standard error, unparsable verdicts}, the games in both orders)."""
    games = play_games(judge, pairs, template)
    return win_rate_of_scores(combine_orders(games).values()), games


def judgement_rows(benchmark: str, games: Sequence[Game]) -> list[Judgement]:
    """Returns games of a benchmark as rows of judgements.jsonl."""
    return [
        {
            "benchmark": benchmark,
            "id": game.id,
            "first": game.first,
            "template": game.template,
            "raw": game.raw,
            "valid": game.verdict is not None,
            "preference": None if math.isnan(game.preference_for_model) else game.preference_for_model,
            "label": game.label_for_model,
            "value": game.value,
        }
        for game in games
    ]


def program_text(item: Mapping[str, Any], response: str) -> str:
    """Returns the program of an answer: EvalPlus' reading of it where its row opens the answer, LiveCodeBench's last
    block, or the whole text in the testbed."""
    if item.get("protocol") == livecodebench.PROTOCOL:
        return livecodebench.program_of(response)
    return program_of(response, item["entry_point"]) if "opening" in item else response


def judged_answers(items: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[ProgramResult]:
    """Returns the result of the program in each answer to the items of one benchmark."""
    programs = [program_text(item, response) for item, response in zip(items, responses, strict=True)]
    if items and items[0].get("protocol") == livecodebench.PROTOCOL:
        return livecodebench.judged(items, programs)
    tested = [
        Program(text, tuple(item["tests"]), item["entry_point"], item.get("setup", ""))
        for text, item in zip(programs, items, strict=True)
    ]
    return run_programs(tested, LIMITS if items and "opening" in items[0] else None)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def answer(
    policy: Policy,
    encoder: Encoder,
    rows: Sequence[Mapping[str, Any]],
    sampling: Sampling,
    seed: int,
    batch: int,
) -> list[tuple[str, int]]:
    """Returns (text, tokens) of one answer per row.

    A row's `opening`, where it has one, is how its answer begins; the text is what the policy adds.
    """
    prompts = [
        [*encoder.prompt(row), *(encode_text(encoder.tokenizer, row["opening"]) if row.get("opening") else ())]
        for row in rows
    ]
    generator = torch.Generator().manual_seed(seed)
    drawn = sampled_tokens(policy, prompts, encoder.pad_id, sampling, generator, batch)
    return [(str(encoder.tokenizer.decode(tokens, skip_special_tokens=True)), len(tokens)) for tokens in drawn]


def sampled_tokens(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    pad_id: int,
    sampling: Sampling,
    generator: torch.Generator,
    batch: int,
    advance: Callable[[], Any] = lambda: None,
) -> list[list[int]]:
    """Returns the tokens of one response to each prompt, in batches of similar length; `advance` is called for each."""
    drawn: list[list[int]] = [[]] * len(prompts)
    for chosen in rows_by_length([len(prompt) for prompt in prompts], batch):
        ids, mask = pad_rows([prompts[i] for i in chosen], pad_id, "left")
        made = generate(policy, ids.to(policy.device), mask.to(policy.device), sampling, generator)
        for i, row, real in zip(chosen, made.ids.cpu(), made.mask.cpu(), strict=True):
            drawn[i] = row[real].tolist()
            advance()
    return drawn
