"""Stage `policy`: one row's policy training (an optimiser on its reward, or a supervised recipe), with its evaluation.

Its result has of every row:

- model/, metrics.json, history.jsonl (training steps), rollouts.jsonl (a few rollouts with the reward of every token
  and its breakdown), alarms.jsonl (signs of reward hacking), generations.jsonl and judgements.jsonl
- checkpoints.jsonl: a line for each checkpoint that was evaluated while training, with win rate and KL, and where the
  scale asks for `checkpoint_proxy` one for the final evaluation; no weights

and of some:

- peak_generations.jsonl and, from a judge, peak_judgements.jsonl: answers by the weights of the peak
- hacking.jsonl: a line for each evaluation that the alarm read, with proxy reward, win rate and KL
- win_rates.json: where a judge decides win rates, the reference, protocol, judge and counts of each
- judge.json: settings of the judge that tables ask later to compare the answers with other rows'; of rows that a judge
  compares with the SFT model, and of rows with a selection
- scores.jsonl: of rows with a selection, test answers by the holistic reward and every aspect
- credit.jsonl: with sampled solutions, what tokens of wrong ones are credited with

record/ has phases.jsonl: of each step the speed of its phases, waiting for the aspects' tools, and memory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch

from rlhf_core import distributed
from rlhf_core.evaluation.protocols import PROTOCOLS
from rlhf_core.models.loading import save_model
from rlhf_core.recipe import parse_recipe, useless_shaping
from tasks.evaluating.aspects import lower_is_better, write_scores
from tasks.evaluating.benchmarks import write_benchmarks
from tasks.evaluating.policies import Evaluation
from tasks.evaluating.sft_comparison import SftComparison, compare_with_sft, over_baseline
from tasks.graph.items import data_name, sft_name
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale
from tasks.policy_run.hacking_watch import HackingWatch, PeakEvaluation, measure_hacking, peak_evaluation
from tasks.policy_run.run import PolicyInputs, PolicyRun, RowTraining, noting_divergence, start_run
from tasks.policy_run.training import reward_trainer, supervised_trainer
from tasks.running.artifacts import record_folder, write_json, write_jsonl
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.result_rows import Metrics
from tasks.running.stage import PageEntry, read_spec, stage
from tasks.running.supervised import write_model

VERSION = 8

#: Numbers of the last line of checkpoints.jsonl that are metrics of the run, too.
PROXIES = ("proxy_reward", "proxy_reward_sft", "preference_score")


def train_policy(
    row: Annotated[Address, "row file (YAML)"],
    scale: Annotated[Address, "optimiser settings (YAML)"],
    evaluation: Annotated[EvaluationConfig, PageEntry("evaluation spec (YAML)")],
    inputs: PolicyInputs,
    seed: int,
    out: Path,
    result: Path,
    checkpoints: RunCheckpoints,
) -> None:
    """Trains a row's policy from its SFT model, evaluates it on every benchmark and writes both.

    Row and scale come as addresses, which messages name; `result` is the folder in `out` that later stages read.
    """
    recipe, settings = parse_recipe(read_settings(row), str(row)), read_spec(PolicyScale, scale)
    training = RowTraining(recipe, settings, inputs, seed + recipe.seed_offset, f"{row} on {scale}")
    if useless := useless_shaping(recipe):
        print(f"note: {row}: {useless}", file=sys.stderr)
    torch.manual_seed(training.seed)  # dropout draws from it
    # settings are checked here, before any model is loaded
    train = reward_trainer(training) if recipe.kind == "reward" else supervised_trainer(training)
    run = start_run(training, evaluation)
    with noting_divergence(out, run):
        metrics = train(run, checkpoints)
        run.policy.model.eval()
        final = run.evaluator.evaluate(run.policy)
        against_sft = compare_with_sft(run.evaluator, final.generations, run.sft_answers)
        kl = run.kl([answer for answer in final.generations if answer["benchmark"] in run.kl_sets])
        metrics |= {"kl": kl} | against_sft.metrics | final.metrics
        peak = None
        if run.watch is not None:
            metrics |= end_watch(run, run.watch, final, against_sft)
            if settings.peak:
                peak, of_peak = evaluate_peak(run, run.watch, metrics)
                metrics |= of_peak
            if settings.measure_hacking:
                steps = {int(noted["step"]): noted["kl"] for noted in run.evaluations} | {run.last_step: kl}
                overoptimised, run.hacking = measure_hacking(
                    run.watch, steps, run.evaluator.world, sft=run.sft_answers, rows=final.generations
                )
                metrics |= overoptimised
        metrics |= write_selection_scores(result, run, final)
        write_judgements(result, run, final, against_sft, peak)
        write_run(result, run, final, peak)
        write_json(result / "metrics.json", {name: float(value) for name, value in metrics.items()})


def end_watch(run: PolicyRun, watch: HackingWatch, final: Evaluation, against_sft: SftComparison) -> Metrics:
    """Ends the hacking watch with the final evaluation; returns metrics of its alarms and the final proxy rewards."""
    last, benchmark, proxies = run.last_step, run.checkpoint_benchmark, Metrics()
    answers = [answer for answer in final.generations if answer["benchmark"] == benchmark]
    verdicts = against_sft.for_prompts(benchmark, [answer["id"] for answer in answers])
    # without checkpoint_prompts no step is evaluated; with stop_on_hacking the training loop evaluated its last step
    if (prompts := run.row.settings.checkpoint_prompts) and not watch.stop_on_hacking:
        if not verdicts.tallies and run.has_win_rates_while_training:
            verdicts = compare_with_sft(run.evaluator, answers, run.sft_answers, (benchmark,))
        # the alarm compares evaluations on the same prompts, of which there are fewer while training
        while_training = [answer["id"] for answer in answers[:prompts]]
        watch.observe_evaluation(last, verdicts.for_prompts(benchmark, while_training).scores(benchmark))
        if run.proxies is not None:
            run.note_evaluation(last, answers, verdicts)
            proxies = {name: value for name, value in run.evaluations[-1].items() if name in PROXIES}
    watch.observe_end(last, verdicts.scores(benchmark))
    return proxies | watch.metrics()


def evaluate_peak(run: PolicyRun, watch: HackingWatch, metrics: Metrics) -> tuple[PeakEvaluation, Metrics]:
    """Returns the evaluation of the weights with the highest win rate, and its metrics beside those of the end."""
    with watch.peak_weights() as step:
        peak = peak_evaluation(run.evaluator, run.policy, run.sft_answers)
    found: Metrics = {"peak_step": step, **peak.metrics}
    if "win_rate_vs_sft" in metrics and "peak_win_rate_vs_sft" in found:
        found["loss_after_peak"] = found["peak_win_rate_vs_sft"] - metrics["win_rate_vs_sft"]
    return peak, found


def write_run(result: Path, run: PolicyRun, final: Evaluation, peak: PeakEvaluation | None) -> None:
    """Writes the model, with its adapters merged, and what was noted while it trained and was evaluated."""
    model = run.policy.model if run.adapter is None else run.adapter.merged()
    write_model(result, partial(save_model, model), run.encoder.tokenizer)
    if run.phases and not distributed.rank():
        write_jsonl(record_folder(result) / "phases.jsonl", run.phases)
    write_jsonl(result / "history.jsonl", run.history)
    write_jsonl(result / "checkpoints.jsonl", run.evaluations)
    write_jsonl(result / "rollouts.jsonl", run.rollouts)
    write_jsonl(result / "alarms.jsonl", map(asdict, run.watch.alarms) if run.watch else [])
    write_jsonl(result / "generations.jsonl", final.generations)
    write_benchmarks(result, final.benchmarks)
    if peak is not None:
        write_jsonl(result / "peak_generations.jsonl", peak.answers)
    if run.hacking:
        write_jsonl(result / "hacking.jsonl", run.hacking)
    if run.credit is not None:
        write_jsonl(result / "credit.jsonl", run.credit)


def write_judgements(
    result: Path, run: PolicyRun, final: Evaluation, against_sft: SftComparison, peak: PeakEvaluation | None
) -> None:
    """Writes judgements.jsonl, and where a judge decided win_rates.json, peak_judgements.jsonl and judge.json.

    The judge.json of a row with a selection is by `write_selection_scores`. record/ gets another judge.json: the
    judge's address and the models that answered, with the dates of the answers.
    """
    evaluator, inputs = run.evaluator, run.row.inputs
    sft = {"sft": sft_name(inputs.sft)}
    facts = {name: {**counts, **sft} for name, counts in against_sft.win_rate_facts.items()}
    facts |= over_baseline(evaluator, final.judgements)
    if peak is not None and peak.against_sft.judgements:
        write_jsonl(result / "peak_judgements.jsonl", peak.against_sft.judgements)
        facts |= {f"peak_{name}": {**counts, **sft} for name, counts in peak.against_sft.win_rate_facts.items()}
    if facts:
        write_json(result / "win_rates.json", facts)
    write_jsonl(result / "judgements.jsonl", [*final.judgements, *against_sft.judgements])
    if against_sft.win_rate_facts and inputs.reward.selection is None:
        write_judge(result, run, {"protocol": asdict(PROTOCOLS[evaluator.config.over_sft])})
    provenance = getattr(evaluator.judge, "provenance", None)
    if provenance is not None and not distributed.rank():
        write_json(record_folder(result) / "judge.json", provenance())


def write_judge(result: Path, run: PolicyRun, facts: Mapping[str, Any]) -> None:
    """Writes judge.json: what tables need to compare the answers with other rows' answers."""
    instruction = {"instruction": run.evaluator.instruction} if run.evaluator.instruction else {}
    settings = run.evaluator.config.between_rows()
    write_json(result / "judge.json", {"data": data_name(run.row.inputs.data), **facts, **instruction, **settings})


def write_selection_scores(result: Path, run: PolicyRun, final: Evaluation) -> Metrics:
    """Writes scores.jsonl and judge.json of a row with a selection of aspects; returns the answers' mean scores, by the
    holistic reward and by every aspect."""
    inputs = run.row.inputs
    selection, holistic = inputs.reward.selection, inputs.holistic
    if selection is None or holistic is None:
        return {}
    write_judge(result, run, {"lower_is_better": lower_is_better(selection)})
    answers = [answer for answer in final.generations if answer["benchmark"] == "alpaca"]
    longest = run.evaluator.config.max_new_tokens
    return write_scores(result, answers, longest, run.encoder, selection, holistic, inputs.reward.aspect_model)


main = stage(train_policy, several_processes=True)
