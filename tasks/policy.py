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

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch

from rlhf_core import distributed
from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.hacking import AlarmSettings
from rlhf_core.models.loading import save_model
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.models.sampling import Sampling
from rlhf_core.normalisers import LocationAware
from rlhf_core.policy_optimisation.config import OptimiserConfig
from rlhf_core.policy_optimisation.experience import EncodedPrompt, Experience
from rlhf_core.policy_optimisation.kl import kl_tokens
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.policy_optimisation.phases import PhaseClock
from rlhf_core.policy_optimisation.sources import FixedSamples, OnPolicy, RolloutSource
from rlhf_core.recipe import Recipe, parse_recipe, useless_shaping
from rlhf_core.rewards.aspect_scorer import ToolClock, prefetching
from rlhf_core.rewards.composition import Reward
from rlhf_core.rewards.hierarchical import HierarchicalGate, gate_metrics
from rlhf_core.signals import Segments
from rlhf_core.stepper import freeze
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.supervised.objectives import objective
from rlhf_core.supervised.recipes import PREFERENCE, Sources, SupervisedRecipe, Weighted
from rlhf_core.training_state import State
from tasks.evaluating.aspects import lower_is_better, write_scores
from tasks.evaluating.policies import Evaluation
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale, needed_solutions, reward_training
from tasks.params.settings import typed
from tasks.policy_run.answering import Opened, question_accuracies
from tasks.policy_run.hacking_watch import HackingWatch, hindsight, scores_over_sft
from tasks.policy_run.proxies import ProxyReader, lost_after_peak, peak_evaluation
from tasks.policy_run.reward import build_reward, check_referenced, shaping_constants
from tasks.policy_run.run import Run, Upstream, start_run
from tasks.policy_run.solutions import (
    SAMPLES_FILE,
    SolutionFolders,
    Solved,
    solved_samples,
)
from tasks.running.artifacts import check_version, peak_memory, read_jsonl, record_folder, write_json, write_jsonl
from tasks.running.checkpoints import RunCheckpoints, resumable_output
from tasks.running.launch import join_processes
from tasks.running.loading import load_policy
from tasks.running.progress import progress
from tasks.running.stage import command_line, device, run_stage, training_on
from tasks.running.supervised import train_resumably

VERSION = 5
STAGE = "policy"

Row = dict[str, Any]


#: What the last evaluation adds to the metrics of a run.
PROXIES = (
    "proxy_reward",
    "proxy_reward_sft",
    "preference_score",
    "judged_win_rate_vs_sft",
    "judged_unparsable",
)


def encoded_prompts(rows: list[Row], encoder: Encoder) -> list[EncodedPrompt]:
    return [EncodedPrompt(encoder.prompt(row), row["prompt"], row) for row in rows]


def build_critic(
    config: OptimiserConfig, sft: Path, encoder: Encoder, reward_models: Sequence[Path], seed: int, head: str = "reward"
) -> ScalarModel | None:
    """The critic that the settings name, on the stage's device; of several reward models the first, by its `head`.

    Raises:
        RecipeError: a critic from a reward model in a row without one.
    """
    if not config.has_critic:
        return None
    if config.critic == "reward_model":
        if not reward_models:
            raise RecipeError("critic is 'reward_model', but no component reads a reward model")
        critic = ScalarModel.load(reward_models[0] / "model")[0].as_critic(head)
    else:
        model = load_policy(sft / "model", encoder).model
        critic = ScalarModel.from_language_model(model, heads=("value",), seed=seed, bias=True)
    critic.to(device())
    return critic.requires_grad_(True)


def run_optimiser(
    run: Run,
    recipe: Recipe,
    reward: Reward,
    critic: ScalarModel | None,
    scale: PolicyScale,
    config: OptimiserConfig,
    sampling: Sampling,
    prompts: list[Row],
    seed: int,
    checkpoints: RunCheckpoints,
    alarm: AlarmSettings,
    solved: Solved | None = None,
) -> tuple[Row, HackingWatch]:
    """Policy optimisation on the reward, from the start or from the last checkpoint: summary metrics and the alarm."""
    encoder, clock, tools = run.encoder, PhaseClock(), ToolClock(reward)
    if scale.prompt_limit is not None:
        encoder = replace(encoder, limits=replace(encoder.limits, prompt=scale.prompt_limit))
    if config.source == "fixed":
        assert solved is not None
        source: RolloutSource = FixedSamples(
            run.reference, solved.batch, rollout_batch=config.rollout_batch, microbatch=config.microbatch, seed=seed
        )
    else:
        source = OnPolicy(
            run.policy,
            run.reference,
            encoder.tokenizer,
            encoded_prompts(prompts, encoder),
            sampling,
            rollout_batch=config.rollout_batch,
            group_size=config.group_size,
            microbatch=config.microbatch,
            seed=seed,
            clock=clock,
            generation_batch=scale.generation_batch,
            on_generated=prefetching(reward),
        )
    auxiliary = None if solved is None else solved.imitation
    optimiser = PolicyOptimiser(
        run.policy, reward, source, config, seed, critic=critic, auxiliary=auxiliary, clock=clock
    )
    world = run.evaluator.world
    label = f"{recipe.optimiser['kind']} {recipe.title} seed {seed}"

    planned = sum(scale.evaluated(step, config.iterations, last=True) for step in range(1, config.iterations + 1))
    if scale.peak and not run.scored:
        raise RecipeError(
            f"{label}: peak keeps the weights with the highest win rate, but nothing judges; set a judge or peak: false"
        )
    watch = HackingWatch(alarm, planned, run.policy.model, judged=run.scored, label=label, keeps=scale.peak)
    if scale.checkpoint_proxy:
        parts = run.reference, run.encoder, run.evaluator, run.baseline
        run.proxies = ProxyReader(reward, *parts, batch=config.microbatch)

    def state() -> State:
        return {"loop": optimiser.state_dict(), "run": run.state_dict(), "watch": watch.state_dict()}

    saved = checkpoints.resume(label)
    if saved is not None:
        optimiser.load_state_dict(saved["loop"])
        run.load_state_dict(saved["run"])
        watch.load_state_dict(saved["watch"])
    with progress(label, config.iterations, optimiser.step) as advance:

        def on_step(step: int, metrics: dict[str, float], experience: Experience) -> bool:
            batch = experience.batch
            if world is not None:
                true = [world.true_reward(r["meta"], t) for r, t in zip(batch.records, batch.texts, strict=True)]
                metrics["true_reward"] = sum(true) / len(true)
            metrics |= _gate(reward, experience, config, metrics)
            if solved is not None and scale.evaluated(step, config.iterations, last=True):
                with optimiser.gathered():
                    metrics |= question_accuracies(run.evaluator, run.policy, scale.checkpoint_prompts)
            run.history.append({"step": step, **metrics})
            run.phases.append({"step": step, **clock.read(), **tools.read(), **peak_memory()})
            watch.observe(step, metrics, len(batch))
            advance(reward=metrics["reward"], kl=metrics["kl"], true=metrics.get("true_reward", math.nan))
            if run.scored and scale.evaluated(step, config.iterations, last=watch.stops):
                with optimiser.gathered():
                    scores = run.checkpoint(step, scale.checkpoint_prompts)
                watch.evaluated(step, scores)
            last = watch.stop or step == config.iterations
            if last:
                run.lengths.extend(_segment_lengths(reward, experience))
            if last or step == 1:
                run.rollouts.extend(_rollout_rows(step, experience, run.encoder, world, scale.rollout_samples))
            checkpoints.offer(step, state)
            return watch.stop

        if not watch.stop:
            optimiser.train(on_step)
    last = run.history[-1]
    summary: Row = {name: last[name] for name in ("reward", "entropy", "response_length", "truncated")}
    summary["train_kl"] = last["kl"]
    if "gate/share_above" in last:
        summary |= {name: sum(row[name] for row in run.history) for name in ("gate/pairs", "gate/violations")}
        summary["gate/share_above_first"] = run.history[0]["gate/share_above"]
        summary["gate/share_above"] = last["gate/share_above"]
    if run.lengths:
        summary["mean_segment_length"] = sum(run.lengths) / len(run.lengths)
    summary |= {f"train_{k}": v for k, v in last.items() if k.startswith("proxy/") or k == "true_reward"}
    for component in reward.components:
        normaliser = component.normaliser
        if isinstance(normaliser, LocationAware):
            summary["normaliser_floor_uses"] = normaliser.floor_uses
            summary["normaliser_floor_share"] = normaliser.floor_uses / max(1, normaliser.segments)
    if watch.stop:
        summary |= {"stopped_step": last["step"], "kept_step": watch.restore()}
    if solved is not None:
        summary |= solved.note_credit(optimiser.experience, run.reference, encoder, config.microbatch)
    return summary, watch


def _gate(
    reward: Reward, experience: Experience, config: OptimiserConfig, metrics: Mapping[str, float]
) -> dict[str, float]:
    """How often a hierarchical gate was open, and what KL did to its order; nothing for other combinations."""
    if not isinstance(reward.combination, HierarchicalGate):
        return {}
    batch = experience.batch
    penalty = torch.zeros(len(batch), device=batch.responses.mask.device)
    if config.kl_in_reward:
        assert batch.logprobs is not None
        assert batch.reference_logprobs is not None
        kl = kl_tokens(batch.logprobs, batch.reference_logprobs, batch.responses.mask, config.kl_estimator)
        penalty = metrics.get("kl_coef", config.kl_coef) * kl.sum(dim=1)
    return gate_metrics(experience.reward, reward.combination, penalty)


def _segment_lengths(reward: Reward, experience: Experience) -> list[int]:
    """Tokens of every segment that the reward read in a rollout batch."""
    lengths: list[int] = []
    for component in reward.components:
        raw = experience.reward.raw[component.name]
        if isinstance(raw, Segments):
            lengths += raw.segmentation.lengths[raw.segmentation.mask].tolist()
    return lengths


def _rollout_rows(step: int, experience: Experience, encoder: Encoder, world: Any, count: int) -> list[Row]:
    batch, rows = experience.batch, []
    for i in range(min(count, len(batch))):
        n = int(batch.responses.lengths[i])
        rows.append(
            {
                "step": step,
                "id": batch.records[i].get("id"),
                "prompt": batch.prompts[i],
                "response": batch.texts[i],
                "tokens": encoder.pieces(batch.responses.ids[i, :n].tolist()),
                "rewards": experience.reward.total[i, :n].tolist(),
                "breakdown": {name: part[i, :n].tolist() for name, part in experience.reward.breakdown.items()},
                "advantages": experience.advantages[i, :n].tolist(),
                "true_reward": world.true_reward(batch.records[i]["meta"], batch.texts[i]) if world else None,
            }
        )
    return rows


def run_supervised(
    run: Run,
    recipe: Recipe,
    config: TrainingConfig,
    learned: SupervisedRecipe,
    sources: Sources,
    scale: PolicyScale,
    seed: int,
    checkpoints: RunCheckpoints,
) -> Row:
    """A supervised recipe on what there is to learn from; returns summary metrics."""
    kind = str(recipe.optimiser["kind"])
    examples = learned.examples(sources, run.encoder)
    target = objective(examples, run.policy, run.reference)
    batches = LengthBucketedBatches(target.lengths, seed=seed, rows_per_batch=config.batch)
    steps = max(1, round(config.epochs * len(target.lengths) / config.batch))
    if learned.opening:
        run.evaluator.encoder = Opened.of(run.encoder, learned.opening)

    def measured(step: int) -> dict[str, float]:
        due = scale.evaluated(step, steps, last=True)
        return question_accuracies(run.evaluator, run.policy, scale.checkpoint_prompts) if due else {}

    run.history = train_resumably(
        run.policy.model, target.loss, batches, steps, config, target.weight,
        checkpoints=checkpoints, label=f"{kind} {recipe.title} seed {seed}", every=target.every, measured=measured,
    )  # fmt: skip
    last = run.history[-1]
    summary = {f"{kind}_{name}": last[name] for name in ("loss", "accuracy", "margin") if name in last}
    if isinstance(examples, Weighted):
        summary |= {"examples": len(examples.sequences), "examples_too_long": examples.too_long}
    return summary


#: What trains a started run: returns its metrics, and what watched for hacking if anything did.
Learn = Callable[[Run, RunCheckpoints], tuple[Row, HackingWatch | None]]


def _by_reward(recipe: Recipe, scale: PolicyScale, above: Upstream, seed: int, where: str) -> Learn:
    """Training by a reward; settings are checked before anything is loaded."""
    settings = reward_training(recipe, scale, where)
    config, sampling, alarm = settings.optimiser, settings.sampling, settings.alarm
    folders = above.solutions
    folders.need(needed_solutions(recipe), where)

    def learn(run: Run, checkpoints: RunCheckpoints) -> tuple[Row, HackingWatch | None]:
        rewards = folders.rewards()
        reward = build_reward(
            recipe, above.entropies, above.reward_models, above.normalisers, above.references, config.microbatch,
            run.encoder.tokenizer, above.sentences, above.selection, above.aspect_models, rewards,
        )  # fmt: skip
        file = above.data / "prompts.jsonl" if folders.samples is None else folders.samples / SAMPLES_FILE
        with training_on(file):
            solved = None
            if folders.samples is not None:
                solved = solved_samples(folders, run.encoder, rewards, settings.imitation, config.microbatch, seed)
            prompts = read_jsonl(file)[: scale.prompts] if solved is None else solved.prompts
            check_referenced(reward, prompts, file)
            head = next((part.readout.head for part in recipe.components if part.readout), "reward")
            critic = build_critic(config, above.sft, run.encoder, above.reward_models, seed, head)
            summary, watch = run_optimiser(
                run, recipe, reward, critic, scale, config, sampling, prompts, seed, checkpoints, alarm, solved
            )
        if solved is not None:
            run.credit = solved.credit
        return summary | shaping_constants(reward), watch

    return learn


def _supervised(recipe: Recipe, scale: PolicyScale, above: Upstream, seed: int, where: str) -> Learn:
    """Training on given texts; settings are checked before anything is loaded."""
    training, learned = scale.supervised_config(recipe.optimiser, where)
    folders = above.solutions
    folders.need(learned.needs, where)

    def learn(run: Run, checkpoints: RunCheckpoints) -> tuple[Row, HackingWatch | None]:
        file = above.data / "preference.train.jsonl" if folders.samples is None else folders.samples / SAMPLES_FILE
        with training_on(file):
            sources = folders.sources(read_jsonl(file) if PREFERENCE in learned.needs else [])
            freeze(run.reference.model)
            return run_supervised(run, recipe, training, learned, sources, scale, seed, checkpoints), None

    return learn


def _in_hindsight(
    run: Run, watch: HackingWatch, scale: PolicyScale, evaluation: Evaluation, summary: Row, result: Path
) -> Row:
    """What the last evaluation adds to those while training; writes the best weights' answers and hacking.jsonl."""
    found: Row = {}
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
        kl = {row["step"]: row["kl"] for row in run.checkpoints} | {last: summary["kl"]}
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
    above = Upstream(
        data, sft, entropies, sentences, reward_model or (), normaliser or (), references or (), selection, holistic,
        aspect_model or (), SolutionFolders(samples, teacher, token_rewards),
    )  # fmt: skip
    train = _by_reward if recipe.kind == "reward" else _supervised
    learn = train(recipe, scale, above, seed, f"{row_path} on {scale_path}")
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
        if above.selection is not None and above.holistic is not None:
            tests = [row for row in evaluation.generations if row["benchmark"] == "alpaca"]
            longest = evaluation_spec.max_new_tokens
            summary |= write_scores(
                result, tests, longest, run.encoder, above.selection, above.holistic, above.aspect_models
            )
            between = {"data": data.parent.name, "lower_is_better": lower_is_better(above.selection)}
            told = {"instruction": run.evaluator.instruction} if run.evaluator.instruction else {}
            write_json(result / "judge.json", {**between, **told, **evaluation_spec.between_rows()})
        _write(result, run, evaluation, summary, [] if watch is None else watch.rows())


def _write(result: Path, run: Run, evaluation: Evaluation, summary: Row, alarms: list[Row]) -> None:
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
