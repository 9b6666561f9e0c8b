"""Stage `policy`: one row's policy training (an optimiser on its reward, or a supervised recipe), with its evaluation.

Its result has of every row:

- model/, metrics.json, history.jsonl (training steps), rollouts.jsonl (a few rollouts with the reward of every token
  and its breakdown), alarms.jsonl (signs of reward hacking), generations.jsonl and judgements.jsonl
- checkpoints.jsonl: a line for each evaluation while training, and at its end, with win rate and KL; no weights

and of some:

- peak_generations.jsonl and, from a judge, peak_judgements.jsonl: answers by the weights of the peak
- hacking.jsonl: a line for each evaluation that the alarm read, with proxy reward, win rate and KL
- win_rates.json: where a judge decides win rates, the reference, protocol, judge and counts of each
- judge.json: settings of the judge that tables ask later to compare the answers with other rows'; of rows that a judge
  compared with the SFT model, and of rows with a selection
- scores.jsonl: of rows with a selection, test answers by the holistic reward and every aspect
- credit.jsonl: with sampled solutions, what tokens of wrong ones are credited with

record/ has phases.jsonl (of each step the speed of its phases, waiting for the aspects' tools, and memory) and
evaluations.jsonl (of each evaluation that the alarm read the score of every prompt, so that alarms can be computed
again).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch

from rlhf_core import distributed
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.protocols import PROTOCOLS
from rlhf_core.models.loading import save_model
from rlhf_core.recipe import parse_recipe, useless_shaping
from tasks.evaluating.aspects import lower_is_better, write_scores
from tasks.evaluating.benchmarks import write_benchmarks
from tasks.evaluating.over_sft import OverSft, over_baseline, over_sft
from tasks.evaluating.policies import Evaluation
from tasks.graph.items import data_name, sft_name
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale
from tasks.policy_run.given_texts import by_given_texts
from tasks.policy_run.hacking_watch import HackingWatch, hindsight
from tasks.policy_run.optimising import by_reward
from tasks.policy_run.proxies import lost_after_peak, peak_evaluation
from tasks.policy_run.run import PolicyInputs, PolicyRun, RowTraining, noting_divergence, start_run
from tasks.running.artifacts import record_folder, write_json, write_jsonl
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.result_rows import Metrics
from tasks.running.stage import PageEntry, read_spec, stage

#: Increment it when the code changes the result; DVC then runs the stage again.
VERSION = 7

#: Of the final evaluation as a line of checkpoints.jsonl, what is added to the metrics of a run.
PROXIES = ("proxy_reward", "proxy_reward_sft", "preference_score")


def train_policy(
    row_path: Annotated[Address, "row file (YAML)"],
    scale_path: Annotated[Address, "optimiser settings (YAML)"],
    evaluation: Annotated[EvaluationConfig, PageEntry("evaluation spec (YAML)")],
    inputs: PolicyInputs,
    seed: int,
    out: Path,
    result: Path,
    checkpoints: RunCheckpoints,
) -> None:
    """Trains a row's policy from its SFT model, evaluates it on every benchmark and writes both."""
    recipe, scale = parse_recipe(read_settings(row_path), str(row_path)), read_spec(PolicyScale, scale_path)
    if useless := useless_shaping(recipe):
        print(f"note: {row_path}: {useless}", file=sys.stderr)
    seed += recipe.seed_offset
    torch.manual_seed(seed)  # dropout draws from it
    row = RowTraining(recipe, scale, inputs, seed, f"{row_path} on {scale_path}")
    learn = by_reward(row) if recipe.kind == "reward" else by_given_texts(row)
    run = start_run(inputs.data, inputs.sft, evaluation, recipe.lora, seed, scale.checkpoint_benchmark)
    if scale.measure_hacking and not run.has_win_rates_while_training:
        raise RecipeError(
            f"{scale_path}: measure_hacking needs data with true rewards, or a judge and judge_checkpoints: true"
        )
    with noting_divergence(out, run):
        metrics, watch = learn(run, checkpoints)
        run.policy.model.eval()
        final = run.evaluator.evaluate(run.policy)
        against_sft = over_sft(run.evaluator, final.generations, run.sft_answers)
        metrics["kl"] = run.kl([answer for answer in final.generations if answer["benchmark"] in run.kl_sets])
        peak: OverSft | None = None
        if watch is not None:
            of_watch, peak = _end_watch(run, watch, scale, final, against_sft, metrics["kl"], result)
            metrics |= of_watch
        # before judgements against the SFT model join those against the baseline, which it counts
        _write_judged(result, run, final, against_sft, peak, inputs)
        final.judgements.extend(against_sft.judgements)
        of_selection = _by_selection(result, run, final, inputs)
        _write(result, run, final, {**metrics, **against_sft.metrics, **of_selection, **final.metrics}, watch)


def _end_watch(
    run: PolicyRun,
    watch: HackingWatch,
    scale: PolicyScale,
    final: Evaluation,
    against_sft: OverSft,
    final_kl: float,
    result: Path,
) -> tuple[Metrics, OverSft | None]:
    """Ends the hacking watch with the final evaluation; evaluates the peak and measures hacking, if the scale asks.

    For the peak its weights are loaded, and afterwards the last ones again. Writes peak_generations.jsonl and
    hacking.jsonl.

    Returns:
        metrics of alarms, peak, hacking and final proxies; and the peak's answers against the SFT model's, None if they
        are not asked for.
    """
    found: Metrics = {}
    peak: OverSft | None = None
    last, benchmark = int(run.history[-1]["step"]), run.checkpoint_benchmark
    rows = [row for row in final.generations if row["benchmark"] == benchmark]
    compared = against_sft.on(benchmark, [row["id"] for row in rows])
    # without checkpoint_prompts no step is evaluated; a run that stops on hacking evaluated the last one itself
    if scale.checkpoint_prompts and not watch.stops_on_hacking:
        if not compared.tallies and run.has_win_rates_while_training:
            compared = over_sft(run.evaluator, rows, run.sft_answers, (benchmark,))
        asked = [row["id"] for row in rows[: scale.checkpoint_prompts]]
        watch.observe_evaluation(last, dict(compared.on(benchmark, asked).scores(benchmark)))
        if run.proxies is not None:
            run.note_evaluation(last, rows, compared)
            found |= {k: v for k, v in run.evaluations[-1].items() if k in PROXIES}
    watch.observe_end(last, dict(compared.scores(benchmark)))
    found |= watch.metrics()
    if scale.peak:
        with watch.peak_weights() as step:
            of_peak, answers, peak = peak_evaluation(run.evaluator, run.policy, run.sft_answers)
        found |= {"peak_step": step, **of_peak, **lost_after_peak({**of_peak, **against_sft.metrics})}
        write_jsonl(result / "peak_generations.jsonl", answers)
    if scale.measure_hacking:
        kl = {int(row["step"]): row["kl"] for row in run.evaluations} | {last: final_kl}
        of_hacking, points = hindsight(watch.alarm, kl, run.evaluator.world, run.sft_answers, final.generations)
        found |= of_hacking
        if points:
            write_jsonl(result / "hacking.jsonl", points)
    return found, peak


def _write_judged(
    result: Path, run: PolicyRun, final: Evaluation, against_sft: OverSft, peak: OverSft | None, inputs: PolicyInputs
) -> None:
    """Writes win_rates.json, peak_judgements.jsonl and judge.json where a judge decided; nothing where true rewards do.

    The judge.json of a row with a selection is by `_by_selection`. record/ gets another judge.json: the judge's
    address and the models that answered, with the dates of the answers.
    """
    evaluator, sft = run.evaluator, sft_name(inputs.sft)
    facts = {name: {**of_rate, "sft": sft} for name, of_rate in against_sft.win_rate_facts.items()}
    facts |= over_baseline(evaluator, final.judgements)
    if peak is not None and peak.judgements:
        write_jsonl(result / "peak_judgements.jsonl", peak.judgements)
        facts |= {f"peak_{name}": {**of_rate, "sft": sft} for name, of_rate in peak.win_rate_facts.items()}
    if facts:
        write_json(result / "win_rates.json", facts)
    if against_sft.win_rate_facts and inputs.reward.selection is None:
        protocol = asdict(PROTOCOLS[evaluator.config.over_sft])
        between = {"data": data_name(inputs.data), "protocol": protocol, **evaluator.config.between_rows()}
        write_json(result / "judge.json", {**between, **_judge_instruction(run)})
    provenance = getattr(evaluator.judge, "provenance", None)
    if provenance is not None and not distributed.rank():
        write_json(record_folder(result) / "judge.json", provenance())


def _judge_instruction(run: PolicyRun) -> dict[str, str]:
    """Returns the sentence that the judge reads before each prompt, on data whose prompts do not say the task."""
    return {"instruction": run.evaluator.instruction} if run.evaluator.instruction else {}


def _by_selection(result: Path, run: PolicyRun, final: Evaluation, inputs: PolicyInputs) -> Metrics:
    """Returns metrics of the test answers by the holistic reward and every aspect of the row's selection, if it has
    one; writes scores.jsonl and judge.json."""
    selection, holistic = inputs.reward.selection, inputs.holistic
    if selection is None or holistic is None:
        return {}
    config = run.evaluator.config
    answers = [row for row in final.generations if row["benchmark"] == "alpaca"]
    aspect_models = inputs.reward.aspect_model
    scores = write_scores(result, answers, config.max_new_tokens, run.encoder, selection, holistic, aspect_models)
    between = {"data": data_name(inputs.data), "lower_is_better": lower_is_better(selection)}
    write_json(result / "judge.json", {**between, **_judge_instruction(run), **config.between_rows()})
    return scores


def _write(
    result: Path, run: PolicyRun, final: Evaluation, metrics: Mapping[str, float], watch: HackingWatch | None
) -> None:
    """Writes the stage's outputs; adapters are merged into the model, so that later stages need not know of any.

    Ranks other than 0 write to a folder that is thrown away; they write neither a model, which is large, nor a record,
    whose folder is beside that one.
    """
    model = run.policy.model if run.adapter is None else run.adapter.merged()
    if not distributed.rank():
        save_model(model, result / "model")
    run.encoder.tokenizer.save_pretrained(result / "model")
    for name, rows in (("history", run.history), ("checkpoints", run.evaluations), ("rollouts", run.rollouts)):
        write_jsonl(result / f"{name}.jsonl", rows)
    write_jsonl(result / "alarms.jsonl", [] if watch is None else watch.rows())
    write_jsonl(result / "generations.jsonl", final.generations)
    write_jsonl(result / "judgements.jsonl", final.judgements)
    write_benchmarks(result, final.benchmarks)
    if run.credit is not None:
        write_jsonl(result / "credit.jsonl", run.credit)
    write_json(result / "metrics.json", {name: float(value) for name, value in metrics.items()})
    if not distributed.rank():
        record = record_folder(result)
        if run.phases:
            write_jsonl(record / "phases.jsonl", run.phases)
        if watch is not None:
            write_jsonl(record / "evaluations.jsonl", watch.evaluations())


main = stage(train_policy, several_processes=True)
