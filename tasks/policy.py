"""Stage `policy`: one row's policy training (an optimiser on its reward, or a supervised recipe), with its evaluation.

Writes model/, metrics.json, history.jsonl, checkpoints.jsonl (win rate against KL while training), rollouts.jsonl
(a few rollouts with the reward of every token and its breakdown), alarms.jsonl (signs of reward hacking),
generations.jsonl, judgements.jsonl, where asked for peak_generations.jsonl (of the best evaluation's weights) and
hacking.jsonl (proxy, win rate and KL of every evaluation); where a judge decides win rates, win_rates.json (with their
references, protocols and counts) and peak_judgements.jsonl; of a row with a selection also scores.jsonl (its test
answers by the holistic reward and every aspect) and judge.json (who compares them with other rows' answers); with
sampled solutions credit.jsonl (what tokens of wrong ones are credited with); and record/phases.jsonl (speed of each
phase, waiting for tools, and memory, per step) and record/evaluations.jsonl (the score of every prompt in every
evaluation, from which alarms can be computed again).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rlhf_core import distributed
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.protocols import PROTOCOLS
from rlhf_core.models.loading import save_model
from rlhf_core.recipe import parse_recipe, useless_shaping
from tasks.evaluating.aspects import lower_is_better, write_scores
from tasks.evaluating.benchmarks import write_benchmarks
from tasks.evaluating.mismatches import answer_mismatches, judgement_mismatches, win_rate_mismatches
from tasks.evaluating.over_sft import OverSft, over_baseline, over_sft
from tasks.evaluating.policies import Evaluation
from tasks.graph.items import data_name, sft_name
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale
from tasks.params.settings import typed
from tasks.policy_run.divergence import noting_divergence
from tasks.policy_run.given_texts import by_given_texts
from tasks.policy_run.hacking_watch import HackingWatch, hindsight
from tasks.policy_run.mismatches import credit_mismatches, peak_mismatches, training_mismatches
from tasks.policy_run.optimising import by_reward
from tasks.policy_run.proxies import lost_after_peak, peak_evaluation
from tasks.policy_run.run import PolicyInputs, PolicyRun, RowTraining, start_run
from tasks.running.artifacts import record_folder, write_json, write_jsonl
from tasks.running.checkpoints import resumable_output
from tasks.running.launch import prepare_process_group
from tasks.running.mismatches import FinishedStage
from tasks.running.result_rows import Metrics
from tasks.running.stage import command_line, run_main

#: Increment it when the code changes the result; DVC then runs the stage again.
VERSION = 7
STAGE = "policy"


#: Metrics of the last evaluation that are added to the metrics of a run.
PROXIES = ("proxy_reward", "proxy_reward_sft", "preference_score")


def _in_hindsight(
    run: PolicyRun,
    watch: HackingWatch,
    scale: PolicyScale,
    evaluation: Evaluation,
    over: OverSft,
    summary: Metrics,
    result: Path,
) -> tuple[Metrics, OverSft | None]:
    """Returns the metrics of the last evaluation, and the best weights' answers against the SFT model's; writes these
    answers and hacking.jsonl."""
    found: Metrics = {}
    best: OverSft | None = None
    last = int(run.history[-1]["step"])
    rows = [row for row in evaluation.generations if row["benchmark"] == run.watched]
    compared = over.on(run.watched, [row["id"] for row in rows])
    if scale.checkpoint_prompts and not watch.stops_on_hacking:  # else the last step has been evaluated
        if not compared.tallies and run.scored_while_training:
            compared = over_sft(run.evaluator, rows, run.sft_answers, (run.watched,))
        asked = [row["id"] for row in rows[: scale.checkpoint_prompts]]
        watch.evaluated(last, dict(compared.on(run.watched, asked).scores(run.watched)))
        if run.proxies is not None:
            run.note(last, rows, compared)
            found |= {k: v for k, v in run.checkpoints[-1].items() if k in PROXIES}
    watch.ended(last, dict(compared.scores(run.watched)))
    found |= watch.metrics()
    if scale.peak:
        with watch.best_weights() as step:
            peak, answers, best = peak_evaluation(run.evaluator, run.policy, run.sft_answers)
        found |= {"peak_step": step, **peak, **lost_after_peak({**peak, **over.metrics})}
        write_jsonl(result / "peak_generations.jsonl", answers)
    if scale.measure_hacking:
        kl = {int(row["step"]): row["kl"] for row in run.checkpoints} | {last: summary["kl"]}
        measured, points = hindsight(watch.alarm, kl, run.evaluator.world, run.sft_answers, evaluation.generations)
        found |= measured
        if points:
            write_jsonl(result / "hacking.jsonl", points)
    return found, best


def train_policy(
    row_path: Annotated[Address, "row file (YAML)"],
    scale_path: Annotated[Address, "optimiser settings (YAML)"],
    evaluation_path: Address,
    above: PolicyInputs,
    seed: int,
    out: Path,
) -> None:
    """Trains a row's policy and evaluates it."""
    prepare_process_group()
    recipe = parse_recipe(read_settings(row_path), str(row_path))
    if useless := useless_shaping(recipe):
        print(f"note: {row_path}: {useless}", file=sys.stderr)
    scale = typed(PolicyScale, read_settings(scale_path), str(scale_path))
    evaluation_spec = typed(EvaluationConfig, read_settings(evaluation_path), str(evaluation_path))
    seed += recipe.seed_offset
    row = RowTraining(recipe, scale, above, seed, f"{row_path} on {scale_path}")
    learn = by_reward(row) if recipe.kind == "reward" else by_given_texts(row)
    inputs: list[Path | str] = [row_path, scale_path, evaluation_path, *above.paths]
    with resumable_output(out, stage=STAGE, version=VERSION, inputs=inputs, seed=seed) as (result, checkpoints):
        run = start_run(above.data, above.sft, evaluation_spec, recipe.lora, seed, scale.checkpoint_benchmark)
        if scale.measure_hacking and not run.scored_while_training:
            raise RecipeError(
                f"{scale_path}: measure_hacking needs data with true rewards, or a judge and judge_checkpoints: true"
            )
        with noting_divergence(out, run):
            summary, watch = learn(run, checkpoints)
            run.policy.model.eval()
            evaluation = run.evaluator.evaluate(run.policy)
            over = over_sft(run.evaluator, evaluation.generations, run.sft_answers)
            measured = run.kl_sets
            summary["kl"] = run.kl([row for row in evaluation.generations if row["benchmark"] in measured])
            best: OverSft | None = None
            if watch is not None:
                found, best = _in_hindsight(run, watch, scale, evaluation, over, summary, result)
                summary |= found
            summary |= over.metrics
            _write_judged(result, run, evaluation, over, best, above)
            evaluation.judgements.extend(over.judgements)
            summary |= _by_selection(result, run, evaluation, evaluation_spec, above)
            if watch is not None and not distributed.rank():
                write_jsonl(record_folder(result) / "evaluations.jsonl", watch.evaluations())
            _write(result, run, evaluation, summary, [] if watch is None else watch.rows())


def _write_judged(
    result: Path, run: PolicyRun, evaluation: Evaluation, over: OverSft, best: OverSft | None, above: PolicyInputs
) -> None:
    """Writes what a judge decided: win_rates.json (every win rate with its reference, protocol, judge and counts),
    peak_judgements.jsonl, and judge.json (who compares the answers with other rows' answers); nothing where true
    rewards decide.

    The record gets judge.json: the judge's address and the models that answered, with the dates of the answers.
    """
    evaluator, sft = run.evaluator, sft_name(above.sft)
    rates = {name: {**facts, "sft": sft} for name, facts in over.win_rates.items()}
    rates |= over_baseline(evaluator, evaluation.judgements)
    if best is not None and best.judgements:
        write_jsonl(result / "peak_judgements.jsonl", best.judgements)
        rates |= {f"peak_{name}": {**facts, "sft": sft} for name, facts in best.win_rates.items()}
    if rates:
        write_json(result / "win_rates.json", rates)
    if over.win_rates and above.reward.selection is None:
        protocol = asdict(PROTOCOLS[evaluator.config.over_sft])
        between = {"data": data_name(above.data), "protocol": protocol, **evaluator.config.between_rows()}
        instruction = {"instruction": evaluator.instruction} if evaluator.instruction else {}
        write_json(result / "judge.json", {**between, **instruction})
    provenance = getattr(evaluator.judge, "provenance", None)
    if provenance is not None and not distributed.rank():
        write_json(record_folder(result) / "judge.json", provenance())


def _by_selection(
    result: Path, run: PolicyRun, evaluation: Evaluation, spec: EvaluationConfig, above: PolicyInputs
) -> Metrics:
    """Returns metrics of the test answers by the holistic reward and every aspect of the row's selection, if it has
    one; writes scores.jsonl and judge.json."""
    selection, holistic = above.reward.selection, above.holistic
    if selection is None or holistic is None:
        return {}
    tests = [row for row in evaluation.generations if row["benchmark"] == "alpaca"]
    models = above.reward.aspect_model
    scores = write_scores(result, tests, spec.max_new_tokens, run.encoder, selection, holistic, models)
    between = {"data": data_name(above.data), "lower_is_better": lower_is_better(selection)}
    instruction = {"instruction": run.evaluator.instruction} if run.evaluator.instruction else {}
    write_json(result / "judge.json", {**between, **instruction, **spec.between_rows()})
    return scores


def _write(
    result: Path, run: PolicyRun, evaluation: Evaluation, summary: Metrics, alarms: list[dict[str, Any]]
) -> None:
    """Writes the stage's outputs; adapters are merged into the model, so that later stages need not know of any."""
    model = run.policy.model if run.adapter is None else run.adapter.merged()
    if not distributed.rank():
        save_model(model, result / "model")
    run.encoder.tokenizer.save_pretrained(result / "model")
    for name in ("history", "checkpoints", "rollouts"):
        write_jsonl(result / f"{name}.jsonl", getattr(run, name))
    write_jsonl(result / "alarms.jsonl", alarms)
    write_jsonl(result / "generations.jsonl", evaluation.generations)
    write_jsonl(result / "judgements.jsonl", evaluation.judgements)
    write_benchmarks(result, evaluation.benchmarks)
    if run.credit is not None:
        write_jsonl(result / "credit.jsonl", run.credit)
    write_json(result / "metrics.json", {k: float(v) for k, v in {**summary, **evaluation.metrics}.items()})
    if run.phases and not distributed.rank():
        write_jsonl(record_folder(result) / "phases.jsonl", run.phases)


def mismatches(finished: FinishedStage) -> Iterator[str]:
    """Yields for `rewardsmith verify` what of a result does not follow from its answers, judgements and histories."""
    for part in (
        answer_mismatches,
        win_rate_mismatches,
        judgement_mismatches,
        training_mismatches,
        credit_mismatches,
        peak_mismatches,
    ):
        yield from part(finished)
    yield from win_rate_mismatches(finished, "peak_generations.jsonl", "peak_")


main = command_line(train_policy)


if __name__ == "__main__":
    run_main(main, several_processes=True)
