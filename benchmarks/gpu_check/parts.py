"""Parts of the check: the heavy work of every kind of stage, through the code with which the stages do it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_check.device import ABSENT, FAILED, Row
from benchmarks.gpu_check.random_work import PAD, TINY, Check
from benchmarks.grpo import Given
from rlhf_core.credit import CREDITS
from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import RecipeError
from rlhf_core.models.device import FLASH
from rlhf_core.models.forecast import Work
from rlhf_core.models.forward import recompute_layers, use_tf32
from rlhf_core.models.loading import ATTENTIONS, PRECISIONS, decoder_of, set_precision
from rlhf_core.models.packing import packs
from rlhf_core.models.policy import Policy, pad_rows, sequence_statistics
from rlhf_core.models.sampling import DEFAULT_ENGINE, ENGINES, Sampling, generate
from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.experience import PHASES, EncodedPrompt, PhaseClock, score
from rlhf_core.policy_optimisation.objectives import preference_loss
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.policy_optimisation.sources import OnPolicy
from rlhf_core.rewards.composition import Component, Reward
from rlhf_core.rewards.preference_training import pair_loss, score_all
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.segmentation.segmenters import Bandit
from rlhf_core.segmentation.segments import SegmentedSequence
from rlhf_core.stepper import freeze
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.supervised.objectives import (
    reference_logprobs,
    sequence_logprobs,
    sft_loss,
)
from rlhf_core.supervised.training import Loss, train

ROOT = Path(__file__).resolve().parents[2]
#: So small that random models stay as they are.
RATE = 1e-6
#: Factor on random weights, without which every token is about as likely.
SHARPER = 10.0


def step_seconds(check: Check, model: nn.Module, loss: Loss, weight: Callable[[Sequence[int]], float]) -> float:
    """Returns the median seconds of an optimiser step, with the first one left out."""
    sizes, ends = check.sizes, list[float]()
    steps = sizes.repeats + 1
    config = TrainingConfig(updates=steps, batch=sizes.batch, microbatch=sizes.microbatch, learning_rate=RATE)
    batches = LengthBucketedBatches([sizes.length] * sizes.batch, seed=0, rows_per_batch=sizes.batch)
    train(
        model, loss, batches, sizes.repeats + 1, config, lambda step, metrics: ends.append(check.device.now()), weight
    )
    return statistics.median(end - begin for begin, end in pairwise(ends))


def _sft_step(check: Check, policy: Policy, what: str, rows: Sequence[EncodedSequence] | None = None) -> Row:
    rows = check.rows(1) if rows is None else rows
    responses = sum(len(row.response) for row in rows)
    seconds = step_seconds(
        check,
        policy.model,
        lambda indices: (*sft_loss(policy, [rows[i] for i in indices]), {}),
        lambda indices: float(sum(len(rows[i].response) for i in indices)),
    )
    tokens = sum(len(row) for row in rows)
    return check.device.row(what, seconds, tokens, Work(trained=check.products(tokens, responses)))


def sft(check: Check) -> Iterator[Row]:
    """Trains a language model on responses."""
    yield _sft_step(check, check.policy(), "step")


def dpo(check: Check) -> Iterator[Row]:
    """Scores pairs under the reference and trains a policy on them."""
    sizes, chosen, rejected = check.sizes, check.rows(1), check.rows(2)
    tokens, projected = 2 * sizes.batch * sizes.length, 2 * sizes.batch * sizes.response
    reference = check.policy()
    freeze(reference.model)
    before: list[Tensor] = []

    def scored() -> None:
        before[:] = [reference_logprobs(reference, rows, sizes.microbatch) for rows in (chosen, rejected)]

    seconds = check.device.median_seconds(scored, sizes.repeats)
    yield check.device.row("reference", seconds, tokens, Work(scored=check.products(tokens, projected)))
    policy = check.policy()

    def loss(indices: Sequence[int]) -> Any:
        picked, device = list(indices), check.device.torch
        logprobs = sequence_logprobs(policy, [*(chosen[i] for i in picked), *(rejected[i] for i in picked)])
        anchors = [values[picked].to(device) for values in before]
        ratios = logprobs[: len(picked)] - anchors[0], logprobs[len(picked) :] - anchors[1]
        losses, _ = preference_loss(torch.stack(ratios, dim=1), 0.1)
        return losses.sum(), float(len(picked)), {}

    seconds = step_seconds(check, policy.model, loss, lambda indices: float(len(indices)))
    yield check.device.row("step", seconds, tokens, Work(trained=check.products(tokens, projected)))


def _segmented(rows: Sequence[EncodedSequence]) -> list[SegmentedSequence]:
    return [SegmentedSequence(row, [len(row.response) - 1]) for row in rows]


def reward_model(check: Check, *, uneven: bool = False) -> Iterator[Row]:
    """Trains a reward model on pairs."""
    rows = check.uneven_rows if uneven else check.rows
    model, chosen, rejected = check.scalar_model(), _segmented(rows(1)), _segmented(rows(2))
    seconds = step_seconds(
        check,
        model,
        lambda indices: pair_loss(model, [chosen[i] for i in indices], [rejected[i] for i in indices], PAD),
        lambda indices: float(len(indices)),
    )
    prompts = 1 if packs(model.backbone) else 2
    tokens = prompts * check.sizes.batch * check.sizes.prompt
    tokens += sum(len(pair.sequence.response) for side in (chosen, rejected) for pair in side)
    yield check.device.row("step", seconds, tokens, Work(trained=check.products(tokens)))


def scoring(check: Check) -> Iterator[Row]:
    """Scores responses under a language model, with entropies, and by a reward model."""
    sizes, rows = check.sizes, check.rows(1)
    tokens = sizes.batch * sizes.length
    policy, model = check.policy(), check.scalar_model().eval()
    freeze(policy.model)
    sides = (([row.prompt for row in rows], "left"), ([row.response for row in rows], "right"))
    padded = [part.to(check.device.torch) for ids, side in sides for part in pad_rows(ids, PAD, side)]

    def statistics_of() -> None:
        score(policy, padded[0], padded[1], padded[2], padded[3], sizes.microbatch)

    seconds = check.device.median_seconds(statistics_of, sizes.repeats)
    work = Work(scored=check.products(tokens, sizes.batch * sizes.response))
    yield check.device.row("log-probabilities and entropies", seconds, tokens, work)
    segmented = _segmented(check.rows(1))
    seconds = check.device.median_seconds(
        lambda: score_all(model, segmented, PAD, batch=sizes.microbatch), sizes.repeats
    )
    yield check.device.row("rewards", seconds, tokens, Work(scored=check.products(tokens)))


def _iterations(check: Check, kind: str, group: int = 1, *, given: bool = False) -> Iterator[Row]:
    """Runs iterations of an optimiser with a reward model and a reference, and times their phases.

    Responses are sampled at their full length; with `given` they are known, and of any length.
    """
    sizes = check.sizes
    actor, reference, rewarding = check.policy(), check.policy(), check.scalar_model()
    for frozen in (reference.model, rewarding):
        freeze(frozen)
    scorer = RewardModelScorer(rewarding, Bandit(), "aggregate", microbatch=sizes.microbatch)
    rows = check.uneven_rows(1) if given else check.rows(1)
    asked, answers = rows[::group], [[row.response for row in rows[i : i + group]] for i in range(0, len(rows), group)]
    Given.answers = {tuple(row.prompt): own for row, own in zip(asked, answers, strict=True)}
    rates = {"actor_lr": RATE, "kl_coef": 0.05, **({"critic_lr": RATE} if kind == "ppo" else {"group_size": group})}
    config = optimiser_config(
        kind, iterations=sizes.repeats + 1, rollout_batch=sizes.batch, minibatch=sizes.batch,
        microbatch=sizes.microbatch, epochs=1, **rates,
    )  # fmt: skip
    prompts = [EncodedPrompt(row.prompt, "", {"id": str(i)}) for i, row in enumerate(asked)]
    clock, seconds = PhaseClock(), list[dict[str, float]]()
    sampling = Sampling(sizes.response, engine="benchmarks.grpo:Given" if given else DEFAULT_ENGINE)
    source = OnPolicy(
        actor, reference, check.tokenizer(), prompts, sampling,
        rollout_batch=sizes.batch, group_size=group, microbatch=sizes.microbatch, clock=clock,
    )  # fmt: skip
    reward = Reward((Component("reward", scorer, CREDITS["last_token"]),))
    critic = check.scalar_model("value") if kind == "ppo" else None
    optimiser = PolicyOptimiser(actor, reward, source, config, 0, critic=critic, clock=clock)
    optimiser.train(lambda step, metrics, experience: seconds.append(clock.read()))
    responses = sum(len(row.response) for row in rows)
    tokens = responses + sizes.batch * sizes.prompt
    language, scalar = check.products(tokens, responses), check.products(tokens)
    critics = 1 if critic else 0
    work = {
        "generate": (responses, check.sampling_work()),
        "score": (tokens, Work(scored=(1 + given) * language + (1 + critics) * scalar)),
        "update": (tokens, Work(trained=language + critics * scalar)),
    }
    for phase in PHASES[given:]:
        median = statistics.median(read[f"{phase}_seconds"] for read in seconds[1:])
        yield check.device.row(phase, median, *work[phase])


def ppo(check: Check) -> Iterator[Row]:
    """Runs iterations of PPO with a reward model, a critic and a reference, and times their phases."""
    yield from _iterations(check, "ppo")


def packing(check: Check) -> Iterator[Row]:
    """Takes steps on rows of different lengths, packed and padded, by each attention that packs."""
    for attention, padded in product(("sdpa", FLASH), (False, True)):
        compared, how = (
            replace(check, attention=attention, padded=padded),
            f"{attention}, {('packed', 'padded')[padded]}",
        )
        try:
            policy = compared.policy()
        except RecipeError as error:
            yield Row(how, ABSENT, _reason(error))
            continue
        yield _sft_step(check, policy, f"SFT, step, {how}", check.uneven_rows(1))
        del policy
        for row in reward_model(compared, uneven=True):
            yield replace(row, what=f"reward model, {row.what}, {how}")
        for name, group in (("ppo", 1), ("grpo", check.sizes.group)):
            for row in _iterations(compared, name, group, given=True):
                yield replace(row, what=f"{name.upper()}, {row.what}, {how}")


def _sampling_row(check: Check, policy: Policy, engine: str, what: str) -> Row:
    ids, mask = (part.to(check.device.torch) for part in pad_rows([row.prompt for row in check.rows(1)], PAD, "left"))
    sampling = Sampling(check.sizes.response, engine=engine)
    seconds = check.device.median_seconds(
        lambda: generate(policy, ids, mask, sampling, torch.Generator().manual_seed(0)), check.sizes.repeats
    )
    tokens = check.sizes.batch * check.sizes.response
    return check.device.row(what, seconds, tokens, check.sampling_work(), check.sampling_traffic())


def _reason(error: RecipeError) -> str:
    """Returns the message with the paths of this tree relative to it, as a record is read elsewhere."""
    return str(error).replace(f"{ROOT}/", "")


def generation(check: Check) -> Iterator[Row]:
    """Samples by each rollout engine, with fewer and more rows at a time."""
    policy = check.policy()
    for engine in ENGINES:
        try:
            ENGINES[engine].check(policy.model.config.to_dict())
        except RecipeError as error:
            yield Row(f"engine {engine}", ABSENT, _reason(error))
            continue
        for rows in check.sizes.sampled:
            larger = replace(check, sizes=replace(check.sizes, batch=rows))
            yield _sampling_row(larger, policy, engine, f"engine {engine}, {rows} rows")


def attention(check: Check) -> Iterator[Row]:
    """Trains and samples by each kind of attention."""
    for name in ATTENTIONS:
        try:
            policy = replace(check, attention=name).policy()
        except RecipeError as error:
            yield Row(name, ABSENT, _reason(error))
            continue
        yield _sampling_row(check, policy, DEFAULT_ENGINE, f"{name}, sampling")
        yield _sft_step(check, policy, f"{name}, SFT step")


def settings(check: Check) -> Iterator[Row]:
    """Takes SFT steps with each setting that is left to the device on and off."""
    yield _sft_step(check, check.policy(), "bf16, activations kept")
    recomputed = check.policy()
    recompute_layers(recomputed.model)
    yield _sft_step(check, recomputed, "bf16, layers recomputed")
    del recomputed
    yield _sft_step(check, check.policy(precision="float32"), "float32")
    rounded = check.policy(precision="float32")
    use_tf32(decoder_of(rounded.model))
    yield _sft_step(check, rounded, "float32 with TF32")


def wide(check: Check) -> Iterator[Row]:
    """Trains and scores with the layers of a larger model, which is what forecasts of GPU hours are about."""
    larger = Check(replace(check.sizes, shape=check.sizes.wide), check.device)
    for part in (sft, reward_model, scoring):
        for row in part(larger):
            yield replace(row, what=f"{part.__name__}, {row.what}")


def _logprobs_and_gradient(policy: Policy, rows: Sequence[EncodedSequence]) -> tuple[Tensor, Tensor]:
    """Returns response tokens' log-probabilities [tokens], and the gradient of their mean, flat and over its largest
    value; both in float32 on the CPU."""
    policy.model.zero_grad()
    statistics, mask = sequence_statistics(policy, rows)
    logprobs = statistics.logprobs[mask]
    logprobs.mean().backward()
    gradients = [p.grad for p in policy.model.parameters() if p.grad is not None]
    gradient = torch.cat([slope.float().flatten().cpu() for slope in gradients])
    return logprobs.detach().float().cpu(), gradient / gradient.abs().max()


def _agreement_row(what: str, found: Tensor, expected: Tensor, allowed: float) -> Row:
    difference = float((found - expected).abs().max())
    if difference <= allowed:
        return Row(what, difference=difference)
    return Row(what, FAILED, f"{what}: {difference:.2g} apart, and {allowed:g} is allowed")


def agreement(check: Check) -> Iterator[Row]:
    """Compares a tiny model on the device with itself in float32 on the CPU, rows in a batch with rows alone, and the
    log-probabilities of sampling with those of a pass over its responses.

    Differences are in nats; a gradient's are shares of its largest value.
    """
    tiny = Check(TINY, check.device)
    rows = [EncodedSequence(row.prompt[i:], row.response) for i, row in enumerate(tiny.uneven_rows(1))]
    base = tiny.policy(precision="float32")
    with torch.no_grad():
        for weights in base.model.parameters():
            if weights.dim() > 1:
                weights.mul_(SHARPER)
    expected, slope = _logprobs_and_gradient(Policy(deepcopy(base.model).cpu(), pad_id=PAD, eos_id=-1), rows)
    for precision, allowed in (("float32", 1e-3), ("bf16", 0.15)):
        policy = Policy(deepcopy(base.model), pad_id=PAD, eos_id=-1)
        set_precision(policy.model, PRECISIONS[precision])
        found, gradient = _logprobs_and_gradient(policy, rows)
        yield _agreement_row(f"{precision} against the CPU, log-probabilities", found, expected, allowed)
        yield _agreement_row(f"{precision} against the CPU, gradient", gradient, slope, allowed)
        alone = torch.cat([_logprobs_and_gradient(policy, [row])[0] for row in rows])
        yield _agreement_row(f"{precision}, rows in a batch against rows alone", found, alone, allowed)
        prompts = [part.to(check.device.torch) for part in pad_rows([row.prompt for row in rows] * 4, PAD, "left")]
        drawn = generate(policy, *prompts, Sampling(4 * TINY.response), torch.Generator().manual_seed(0))
        fresh = policy.statistics(*prompts, drawn.ids, drawn.mask)
        sampled, passed = (made.logprobs[drawn.mask].detach().cpu() for made in (drawn, fresh))
        yield _agreement_row(f"{precision}, sampled tokens against a pass over them", sampled, passed, allowed)


@dataclass(frozen=True)
class Part:
    """A part of the check.

    Attributes:
        run: yields its rows.
        stages: kinds of stages whose heavy work it is.
    """

    run: Callable[[Check], Iterator[Row]]
    stages: tuple[str, ...] = ()


PARTS = {
    "sft": Part(sft, ("sft", "generative_reward_model")),
    "dpo": Part(dpo, ("policy",)),
    "reward_model": Part(reward_model, ("reward_model", "aspect_model")),
    "scoring": Part(scoring, ("entropies", "normaliser", "selection", "reward_bench", "best_of_n")),
    "ppo": Part(ppo, ("policy",)),
    "packing": Part(packing),
    "generation": Part(generation, ("references", "samples", "pool", "teacher")),
    "attention": Part(attention),
    "settings": Part(settings),
    "wide": Part(wide),
    "agreement": Part(agreement),
}
#: Kinds of stages that read files or ask an endpoint, or whose model is small.
LIGHT_STAGES = ("check", "prepare", "tokenizer", "segmenter", "solution_pairs", "second_judge", "tables")
