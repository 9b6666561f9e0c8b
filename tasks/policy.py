"""Stage `policy`: one row's policy training (an optimiser on its reward, or a supervised recipe), with its evaluation.

Writes model/, metrics.json, history.jsonl, checkpoints.jsonl (win rate against KL while training), rollouts.jsonl
(a few rollouts with the reward of every token and its breakdown), alarms.jsonl (signs of reward hacking),
generations.jsonl, judgements.jsonl, where asked for peak_generations.jsonl (of the best evaluation's weights) and
hacking.jsonl (proxy, win rate and KL of every evaluation); of a row with a selection also scores.jsonl (its test
answers by the holistic reward and every aspect) and judge.json (who compares them with other rows' answers); with
sampled solutions credit.jsonl (what tokens of wrong ones are credited with); and record/phases.jsonl (speed of each
phase, waiting for tools, and memory, per step).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from rlhf_core import distributed
from rlhf_core.errors import RecipeError
from rlhf_core.models.loading import save_model
from rlhf_core.recipe import parse_recipe, useless_shaping
from tasks.evaluating.aspects import lower_is_better, write_scores
from tasks.evaluating.policies import Evaluation
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale
from tasks.params.settings import typed
from tasks.policy_run.given_texts import by_given_texts
from tasks.policy_run.hacking_watch import HackingWatch, hindsight, scores_over_sft
from tasks.policy_run.optimising import by_reward
from tasks.policy_run.proxies import lost_after_peak, peak_evaluation
from tasks.policy_run.reward import RewardInputs
from tasks.policy_run.run import PolicyInputs, PolicyRun, RowTraining, start_run
from tasks.policy_run.solutions import (
    SolutionFolders,
)
from tasks.running.artifacts import check_version, record_folder, write_json, write_jsonl
from tasks.running.checkpoints import resumable_output
from tasks.running.launch import join_processes
from tasks.running.result_rows import Metrics
from tasks.running.stage import command_line, run_stage

VERSION = 5
STAGE = "policy"


#: What the last evaluation adds to the metrics of a run.
PROXIES = (
    "proxy_reward",
    "proxy_reward_sft",
    "preference_score",
    "judged_win_rate_vs_sft",
    "judged_unparsable",
)


def _in_hindsight(
    run: PolicyRun, watch: HackingWatch, scale: PolicyScale, evaluation: Evaluation, summary: Metrics, result: Path
) -> Metrics:
    """Returns what the last evaluation adds to those while training; writes the best weights' answers and
    hacking.jsonl."""
    found: Metrics = {}
    last = int(run.history[-1]["step"])
    if scale.checkpoint_prompts and not watch.stops:
        rows = [row for row in evaluation.generations if row["benchmark"] == "alpaca"]
        watch.evaluated(last, scores_over_sft(run.evaluator, rows[: scale.checkpoint_prompts], run.baseline))
        if run.proxies is not None:
            run.note(last, rows)
            found |= {k: v for k, v in run.checkpoints[-1].items() if k in PROXIES}
    found |= watch.metrics()
    if scale.peak:
        with watch.best_weights() as step:
            peak, answers = peak_evaluation(run.evaluator, run.policy, run.baseline)
        found |= {"peak_step": step, **peak, **lost_after_peak({**peak, **evaluation.metrics})}
        write_jsonl(result / "peak_generations.jsonl", answers)
    if scale.measure_hacking:
        kl = {int(row["step"]): row["kl"] for row in run.checkpoints} | {last: summary["kl"]}
        measured, points = hindsight(watch.alarm, kl, run.evaluator.world, run.baseline, evaluation.generations)
        found |= measured
        if points:
            write_jsonl(result / "hacking.jsonl", points)
    return found


def train_policy(
    row_path: Annotated[Address, "row file (YAML)"],
    scale_path: Annotated[Address, "optimiser settings (YAML)"],
    evaluation_path: Address,
    data: Path,
    sft: Path,
    entropies: Path | None,
    reward_model: Annotated[tuple[Path, ...] | None, "results of `reward_model`, as many as the row names"],
    normaliser: Annotated[tuple[Path, ...] | None, "results of `normaliser`, in the same order"],
    references: Annotated[tuple[Path, ...] | None, "results of `references`, as many as the shapings need"],
    seed: int,
    out: Path,
    version: int | None = None,
    sentences: Path | None = None,
    selection: Annotated[Path | None, "result of `selection`, for rows with aspects"] = None,
    holistic: Annotated[Path | None, "result of `reward_model` that the selection compares with"] = None,
    aspect_model: Annotated[tuple[Path, ...] | None, "results of `aspect_model` that the aspects read"] = None,
    samples: Annotated[Path | None, "result of `samples`, for rows that learn from sampled solutions"] = None,
    teacher: Annotated[Path | None, "result of `teacher`, for rows that learn from its rewrites"] = None,
    token_rewards: Annotated[
        Path | None, "result of `generative_reward_model`, for rows that read its rewards or rewrites"
    ] = None,
) -> None:
    """Trains a row's policy and evaluates it."""
    check_version(STAGE, VERSION, version)
    join_processes()
    recipe = parse_recipe(read_settings(row_path), str(row_path))
    if useless := useless_shaping(recipe):
        print(f"note: {row_path}: {useless}", file=sys.stderr)
    scale = typed(PolicyScale, read_settings(scale_path), str(scale_path))
    evaluation_spec = typed(EvaluationConfig, read_settings(evaluation_path), str(evaluation_path))
    seed += recipe.seed_offset
    models = reward_model or (), normaliser or (), references or ()
    reward = RewardInputs(entropies, *models, sentences, selection, aspect_model or ())
    above = PolicyInputs(data, sft, reward, holistic, SolutionFolders(samples, teacher, token_rewards))
    row = RowTraining(recipe, scale, above, seed, f"{row_path} on {scale_path}")
    learn = by_reward(row) if recipe.kind == "reward" else by_given_texts(row)
    inputs: list[Path | str] = [row_path, scale_path, evaluation_path, *above.paths]
    with resumable_output(out, stage=STAGE, version=VERSION, inputs=inputs, seed=seed) as (result, checkpoints):
        run = start_run(data, sft, evaluation_spec, recipe.lora, seed)
        if scale.measure_hacking and not run.scored:
            raise RecipeError(f"{scale_path}: measure_hacking needs a judge, or data with true rewards")
        summary, watch = learn(run, checkpoints)
        run.policy.model.eval()
        evaluation = run.evaluator.evaluate(run.policy, run.baseline)
        measured = run.kl_sets
        summary["kl"] = run.kl([row for row in evaluation.generations if row["benchmark"] in measured])
        if watch is not None:
            summary |= _in_hindsight(run, watch, scale, evaluation, summary, result)
        if selection is not None and holistic is not None:
            tests = [row for row in evaluation.generations if row["benchmark"] == "alpaca"]
            longest = evaluation_spec.max_new_tokens
            summary |= write_scores(result, tests, longest, run.encoder, selection, holistic, reward.aspect_models)
            between = {"data": data.parent.name, "lower_is_better": lower_is_better(selection)}
            told = {"instruction": run.evaluator.instruction} if run.evaluator.instruction else {}
            write_json(result / "judge.json", {**between, **told, **evaluation_spec.between_rows()})
        _write(result, run, evaluation, summary, [] if watch is None else watch.rows())


def _write(
    result: Path, run: PolicyRun, evaluation: Evaluation, summary: Metrics, alarms: list[dict[str, Any]]
) -> None:
    """The stage's outputs; adapters are merged into the model, so that whoever reads it needs to know of none."""
    model = run.policy.model if run.adapter is None else run.adapter.merged()
    if not distributed.rank():
        save_model(model, result / "model")
    run.encoder.tokenizer.save_pretrained(result / "model")
    for name in ("history", "checkpoints", "rollouts"):
        write_jsonl(result / f"{name}.jsonl", getattr(run, name))
    write_jsonl(result / "alarms.jsonl", alarms)
    write_jsonl(result / "generations.jsonl", evaluation.generations)
    write_jsonl(result / "judgements.jsonl", evaluation.judgements)
    if run.credit is not None:
        write_jsonl(result / "credit.jsonl", run.credit)
    write_json(result / "metrics.json", {k: float(v) for k, v in {**summary, **evaluation.metrics}.items()})
    if run.phases and not distributed.rank():
        write_jsonl(record_folder(result) / "phases.jsonl", run.phases)


main = command_line(train_policy)


if __name__ == "__main__":
    run_stage(main, several_processes=True)
