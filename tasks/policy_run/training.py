"""Training of a policy: on given texts, by a supervised recipe, or on a reward, by policy optimisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from rlhf_core import distributed
from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import RecipeError
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.normalisers import LocationAware
from rlhf_core.policy_optimisation.config import OptimiserConfig
from rlhf_core.policy_optimisation.experience import EncodedPrompt, Experience, PhaseClock
from rlhf_core.policy_optimisation.kl import kl_tokens
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.policy_optimisation.sources import FixedSamples, OnPolicy, RolloutSource
from rlhf_core.rewards.aspect_scorer import ToolClock, prefetching
from rlhf_core.rewards.combinations import HierarchicalGate, gate_metrics
from rlhf_core.rewards.composition import Reward
from rlhf_core.signals import Segments
from rlhf_core.stepper import freeze
from rlhf_core.supervised.objectives import objective
from rlhf_core.supervised.recipes import PREFERENCE, Weighted
from rlhf_core.training_state import State, restoring
from tasks.params.policy import PolicyScale, RewardTraining, reward_training
from tasks.policy_run.hacking_watch import HackingWatch
from tasks.policy_run.proxies import ProxyReader
from tasks.policy_run.reward import build_reward, shaping_constants
from tasks.policy_run.run import Learn, PolicyRun, RowTraining, question_accuracies
from tasks.policy_run.solutions import SAMPLES_FILE, SolutionTraining, solved_samples
from tasks.running.artifacts import first_rows, peak_memory, read_jsonl
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.device_settings import apply_device_settings
from tasks.running.loading import load_policy
from tasks.running.machine import device
from tasks.running.progress import progress
from tasks.running.result_rows import Metrics, Prompt, Rollout
from tasks.running.stage import name_file_in_numeric_errors
from tasks.running.supervised import fit


def supervised_trainer(row: RowTraining) -> Learn:
    """Returns the trainer of a supervised recipe; settings are checked before models are loaded."""
    settings, folders = row.settings, row.inputs.solutions
    training, learned = settings.supervised_config(row.recipe.optimiser, row.where)

    def learn(run: PolicyRun, checkpoints: RunCheckpoints) -> Metrics:
        preference = row.inputs.data / "preference.train.jsonl"
        file = preference if folders.samples is None else folders.samples / SAMPLES_FILE
        sources = replace(folders.sources(read_jsonl(file) if PREFERENCE in learned.needs else []), file=str(file))
        freeze(run.reference.model)
        kind = str(row.recipe.optimiser["kind"]).rpartition(":")[2]
        examples = learned.examples(sources, run.encoder)
        target = objective(examples, run.policy, run.reference)
        steps, weighted = training.steps(len(target.lengths)), isinstance(examples, Weighted)
        run.evaluator.encoder = replace(run.encoder, opening=learned.opening)

        def measured(step: int) -> dict[str, float]:
            due = settings.evaluated(step, steps, last=True)
            return question_accuracies(run.evaluator, run.policy, settings.checkpoint_prompts) if due else {}

        run.history = fit(
            run.policy.model,
            target,
            training,
            seed=row.seed,
            checkpoints=checkpoints,
            label=f"{kind} {row.recipe.title} seed {row.seed}",
            file=file,
            frozen=[] if run.adapter is not None or weighted else [run.reference.model],
            measured=measured,
        )
        last = run.history[-1]
        summary = {f"{kind}_{name}": last[name] for name in ("loss", "accuracy", "margin") if name in last}
        if isinstance(examples, Weighted):
            summary |= {"examples": len(examples.sequences), "examples_too_long": examples.too_long}
        elif examples.dropped:
            summary["pairs_dropped"] = examples.dropped
        return summary

    return learn


def reward_trainer(row: RowTraining) -> Learn:
    """Returns the trainer of a policy with a reward, whose settings are checked here; where the alarm stops a run, the
    policy ends with the weights of its peak."""
    training, folders = reward_training(row.recipe, row.settings, row.where), row.inputs.solutions

    def learn(run: PolicyRun, checkpoints: RunCheckpoints) -> Metrics:
        microbatch, token_rewards = training.optimiser.microbatch, folders.rewards()
        reward = build_reward(row.recipe, row.inputs.reward, microbatch, run.encoder.tokenizer, token_rewards)
        file = row.inputs.data / "prompts.jsonl" if folders.samples is None else folders.samples / SAMPLES_FILE
        with name_file_in_numeric_errors(file):
            solved = None
            if folders.samples is not None:
                solved = solved_samples(
                    folders,
                    run.encoder,
                    token_rewards,
                    training.imitation,
                    microbatch,
                    row.seed,
                    row.settings.solutions,
                )
                prompts = solved.prompts
            else:
                prompts = first_rows(read_jsonl(file), row.settings.prompts, "prompts", file)
            optimising = Optimising(run, shortened(training, row.settings, solved), reward, prompts, solved)
            run.watch = optimising.watch
            optimising.train(checkpoints)
            summary = optimising.summary()
            if optimising.watch.stop:
                summary |= {"stopped_step": run.last_step, "kept_step": optimising.watch.restore_peak()}
        run.credit = None if solved is None else solved.credit
        return summary | shaping_constants(reward)

    return learn


def shortened(training: RewardTraining, settings: PolicyScale, solved: SolutionTraining | None) -> RewardTraining:
    """Returns the training with no more iterations than the passes that the settings ask for over the fixed samples."""
    config, passes = training.optimiser, settings.solutions.passes
    if solved is None or passes is None:
        return training
    iterations = max(1, round(passes * len(solved.batch) / config.rollout_batch))
    return replace(training, optimiser=replace(config, iterations=min(config.iterations, iterations)))


class Optimising:
    """A running policy optimisation: its optimiser, the alarm, and the notes after each step."""

    def __init__(
        self,
        run: PolicyRun,
        training: RewardTraining,
        reward: Reward,
        prompts: list[Prompt],
        solved: SolutionTraining | None,
    ) -> None:
        row, self.run, self.reward, self.solved = run.row, run, reward, solved
        self.settings, self.config = row.settings, training.optimiser
        self.label = f"{row.recipe.optimiser['kind']} {row.recipe.title} seed {row.seed}"
        self.encoder, config = run.encoder, self.config
        if self.settings.prompt_limit is not None:
            self.encoder = replace(run.encoder, limits=replace(run.encoder.limits, prompt=self.settings.prompt_limit))
        critic = build_critic(row, config, run.encoder)
        limits = self.encoder.limits
        longest = limits.total if solved is not None else limits.prompt + training.sampling.max_new_tokens
        at_once = min(config.microbatch, -(config.minibatch // -distributed.world_size()))
        models = [run.policy.model, *([] if critic is None else [critic])]
        apply_device_settings(models, config, at_once * longest, _frozen(run, reward))
        self.clock, self.tools = PhaseClock(), ToolClock(reward)
        sizes = {"rollout_batch": config.rollout_batch, "microbatch": config.microbatch, "seed": row.seed}
        source: RolloutSource
        if config.fixed_samples:
            if solved is None:
                raise RecipeError(f"{row.where}: the optimiser learns from fixed samples: give --samples")
            source = FixedSamples(run.reference, solved.batch, **sizes)
        else:
            source = OnPolicy(
                run.policy,
                run.reference,
                self.encoder.tokenizer,
                encoded_prompts(prompts, self.encoder),
                training.sampling,
                **sizes,
                group_size=config.group_size,
                clock=self.clock,
                generation_batch=self.settings.generation_batch,
                on_generated=prefetching(reward),
            )
        auxiliary = None if solved is None else solved.imitation
        self.optimiser = PolicyOptimiser(
            run.policy, reward, source, config, row.seed, critic=critic, auxiliary=auxiliary, clock=self.clock
        )
        steps = range(1, config.iterations + 1)
        self.watch = HackingWatch(
            training.alarm,
            sum(self.settings.evaluated(step, config.iterations, last=True) for step in steps),
            run.policy.model,
            label=self.label,
            keeps=self.settings.peak,
        )
        if self.settings.checkpoint_proxy:
            run.proxies = ProxyReader(
                reward, run.reference, run.encoder, run.evaluator, run.sft_answers, config.microbatch,
                run.checkpoint_benchmark,
            )  # fmt: skip

    def state_dict(self) -> State:
        return {
            "loop": self.optimiser.state_dict(),
            "run": self.run.state_dict(),
            "watch": self.watch.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.optimiser.load_state_dict(state["loop"])
        self.run.load_state_dict(state["run"])
        self.watch.load_state_dict(state["watch"])

    def record_step(self, step: int, metrics: Metrics, experience: Experience) -> Metrics:
        """Notes a step and returns its metrics, including metrics of true rewards, gate and questions."""
        run, world, batch = self.run, self.run.evaluator.world, experience.batch
        if world is not None:
            true = [world.true_reward(r["meta"], t) for r, t in zip(batch.records, batch.texts, strict=True)]
            metrics["true_reward"] = sum(true) / len(true)
        metrics |= _gate(self.reward, experience, self.config, metrics)
        if self.solved is not None and self.settings.evaluated(step, self.config.iterations, last=True):
            with self.optimiser.gathered():
                metrics |= question_accuracies(run.evaluator, run.policy, self.settings.checkpoint_prompts)
        run.history.append({"step": step, **metrics})
        run.phases.append({"step": step, **self.clock.read(), **self.tools.read(), **peak_memory()})
        self.watch.observe(step, metrics, len(batch))
        return metrics

    def evaluate(self, step: int) -> None:
        """Evaluates the policy after a step, where the settings say so."""
        last = self.watch.stop_on_hacking
        if self.run.has_win_rates_while_training and self.settings.evaluated(step, self.config.iterations, last=last):
            with self.optimiser.gathered():
                scores = self.run.evaluate(step, self.settings.checkpoint_prompts)
            self.watch.observe_evaluation(step, scores)

    def keep_rollouts(self, step: int, experience: Experience) -> None:
        """Keeps some rollouts of the first and the last step, and the last one's lengths of segments."""
        run, last = self.run, self.watch.stop or step == self.config.iterations
        if last:
            run.lengths.extend(_segment_lengths(self.reward, experience))
        if last or step == 1:
            world, count = run.evaluator.world, self.settings.rollout_samples
            run.rollouts.extend(_rollout_rows(step, experience, run.encoder, world, count))

    def train(self, checkpoints: RunCheckpoints) -> None:
        """Trains from the start or from the last checkpoint, until the end or until the alarm stops it."""
        saved = checkpoints.resume(self.label)
        if saved is not None:
            with restoring():
                self.load_state_dict(saved)
        with progress(self.label, self.config.iterations, self.optimiser.step) as advance:

            def on_step(step: int, metrics: Metrics, experience: Experience) -> bool:
                metrics = self.record_step(step, metrics, experience)
                checkpoints.note(self.run.history)
                advance(reward=metrics["reward"], kl=metrics["kl"], true=metrics.get("true_reward", math.nan))
                self.evaluate(step)
                self.keep_rollouts(step, experience)
                checkpoints.offer(step, self.state_dict)
                return self.watch.stop

            if not self.watch.stop:
                self.optimiser.train(on_step)

    def summary(self) -> Metrics:
        """Returns the metrics of the whole training."""
        run, last = self.run, self.run.history[-1]
        summary: Metrics = {name: last[name] for name in ("reward", "entropy", "response_length", "truncated")}
        summary["train_kl"] = last["kl"]
        if "gate/share_above" in last:
            summary |= {name: sum(row[name] for row in run.history) for name in ("gate/pairs", "gate/violations")}
            summary["gate/share_above_first"] = run.history[0]["gate/share_above"]
            summary["gate/share_above"] = last["gate/share_above"]
        if run.lengths:
            summary["mean_segment_length"] = sum(run.lengths) / len(run.lengths)
        summary |= {f"train_{k}": v for k, v in last.items() if k.startswith("proxy/") or k == "true_reward"}
        for component in self.reward.components:
            normaliser = component.normaliser
            if isinstance(normaliser, LocationAware):
                summary["normaliser_floor_uses"] = normaliser.floor_uses
                summary["normaliser_floor_share"] = normaliser.floor_uses / max(1, normaliser.segments)
        if self.solved is not None:
            credited = self.optimiser.experience
            summary |= self.solved.note_credit(credited, run.reference, self.encoder, self.config.microbatch)
        return summary


def _frozen(run: PolicyRun, reward: Reward) -> list[nn.Module]:
    """Returns the models beside a trained policy: the reference, where it is one of its own, and reward models."""
    scorers = [getattr(component.scorer, "model", None) for component in reward.components]
    reference = [] if run.adapter is not None else [run.reference.model]
    return [*reference, *{id(model): model for model in scorers if isinstance(model, nn.Module)}.values()]


def _gate(
    reward: Reward, experience: Experience, config: OptimiserConfig, metrics: Mapping[str, float]
) -> dict[str, float]:
    """Returns the share of open gates and of orders that KL changed; empty without a hierarchical gate."""
    if not isinstance(reward.combination, HierarchicalGate):
        return {}
    batch = experience.batch
    penalty = torch.zeros(len(batch), device=batch.responses.mask.device)
    if config.kl_placement == "reward":
        if batch.logprobs is None or batch.reference_logprobs is None:
            raise RecipeError("KL in the reward reads log-probabilities of policy and reference, and these have none")
        kl = kl_tokens(batch.logprobs, batch.reference_logprobs, batch.responses.mask, config.kl_estimator)
        penalty = metrics.get("kl_coef", config.kl_coef) * kl.sum(dim=1)
    return gate_metrics(experience.reward, reward.combination, penalty)


def _segment_lengths(reward: Reward, experience: Experience) -> list[int]:
    """Returns tokens of every segment that the reward read in a rollout batch."""
    lengths: list[int] = []
    for component in reward.components:
        raw = experience.reward.raw[component.name]
        if isinstance(raw, Segments):
            lengths += raw.segmentation.lengths[raw.segmentation.mask].tolist()
    return lengths


def _rollout_rows(step: int, experience: Experience, encoder: Encoder, world: Any, count: int) -> list[Rollout]:
    batch, rows = experience.batch, list[Rollout]()
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


def encoded_prompts(rows: list[Prompt], encoder: Encoder) -> list[EncodedPrompt]:
    return [EncodedPrompt(encoder.prompt(row), row["prompt"], dict[str, Any](row)) for row in rows]


def build_critic(row: RowTraining, config: OptimiserConfig, encoder: Encoder) -> ScalarModel | None:
    """Returns the critic that the settings name, on the stage's device; of several reward models the first, by the
    row's head."""
    if not config.has_critic:
        return None
    if config.critic == "reward_model":
        head = next((part.readout.head for part in row.recipe.components if part.readout), "reward")
        critic = ScalarModel.load(row.inputs.reward.reward_model[0] / "model")[0].as_critic(head)
    else:
        model = load_policy(row.inputs.sft / "model", encoder).model
        critic = ScalarModel.from_language_model(model, heads=("value",), seed=row.seed, bias=True)
    return critic.to(device()).requires_grad_(True)
