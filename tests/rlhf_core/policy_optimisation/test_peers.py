"""Losses beside TRL's on the same tiny model and batch; docs/engine.md explains each difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import EOS, PAD, batch_of, random_rows, tiny_policy
from transformers import PreTrainedTokenizerFast

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.logprobs import token_statistics
from rlhf_core.models.policy import pad_rows
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.policy_optimisation.advantages import group_relative, leave_one_out, on_tokens
from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.experience import Experience
from rlhf_core.policy_optimisation.learner import Learner
from rlhf_core.policy_optimisation.objectives import preference_loss
from rlhf_core.rewards.composition import RewardOutput
from rlhf_core.rewards.preference_training import head_evaluations
from rlhf_core.rollout import RolloutBatch
from rlhf_core.segmentation.segments import SegmentedSequence
from rlhf_core.supervised.objectives import sequence_logprobs

trl = pytest.importorskip("trl")
SIZES: dict[str, Any] = {
    "iterations": 1, "rollout_batch": 8, "minibatch": 8, "microbatch": 3, "epochs": 1, "actor_lr": 1e-30,
    "group_size": 4,
}  # fmt: skip
SCORES = torch.tensor([0.3, -1.0, 2.0, 0.4, 1.0, 1.0, -0.5, 0.2])


def batch_and_model() -> tuple[RolloutBatch, Any]:
    """Off-policy by some noise, so that clips bind."""
    policy = tiny_policy(1)
    prompts = random_rows(1, [3, 5], ended=False)
    batch = batch_of([prompts[i // 4] for i in range(8)], random_rows(2, [6, 1, 3, 7, 2, 5, 4, 4]))
    responses = batch.responses
    with torch.no_grad():
        now = policy.statistics(batch.prompt_ids, batch.prompt_mask, responses.ids, responses.mask).logprobs
    noise = 0.4 * torch.randn(now.shape, generator=torch.Generator().manual_seed(0)) * responses.mask
    groups = torch.arange(8) // 4
    return replace(batch, logprobs=now + noise, reference_logprobs=now - noise, groups=groups), policy


def inputs(batch: RolloutBatch, advantages: torch.Tensor) -> dict[str, torch.Tensor]:
    assert batch.logprobs is not None
    assert batch.reference_logprobs is not None
    return {
        "prompt_ids": batch.prompt_ids,
        "prompt_mask": batch.prompt_mask.long(),
        "completion_ids": batch.responses.ids,
        "completion_mask": batch.responses.mask.long(),
        "advantages": advantages,
        "old_per_token_logps": batch.logprobs,
        "ref_per_token_logps": batch.reference_logprobs,
        "num_items_in_batch": batch.responses.mask.sum(),
    }


def saved(policy: Any, folder: Path) -> PreTrainedTokenizerFast:
    """Saves the model beside a tokenizer of its numbers, which is returned."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({str(i): i for i in range(50)}, unk_token="3"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=str(PAD), eos_token=str(EOS))
    policy.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def trainer(kind: str, policy: Any, folder: Path, **options: Any) -> Any:
    """A TRL trainer on a saved copy of the model, in float32 on the CPU."""
    from datasets import Dataset

    tokenizer = saved(policy, folder)
    arguments = getattr(trl, f"{kind}Config")(
        output_dir=str(folder / "out"), bf16=False, use_cpu=True, report_to=[], num_generations=4,
        per_device_train_batch_size=8, max_completion_length=7, gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"}, **options,
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": ["5 6"] * 8})
    made = getattr(trl, f"{kind}Trainer")(
        model=str(folder),
        args=arguments,
        processing_class=tokenizer,
        train_dataset=prompts,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
    )
    made.model.eval()
    made.current_gradient_accumulation_steps = 1
    return made


def ours(kind: str, batch: RolloutBatch, policy: Any, advantages: torch.Tensor, kl_coef: float, **options: Any) -> Any:
    zeros = torch.zeros(batch.responses.ids.shape)
    config = optimiser_config(kind, **SIZES, **options)
    experience = Experience(
        batch, RewardOutput(zeros, {}, {}), zeros, on_tokens(advantages, batch.responses.mask), zeros, SCORES
    )
    learner = Learner(policy, None, config)
    return learner.minibatch(experience, torch.arange(8)[:, None], kl_coef)


@pytest.mark.parametrize(("loss_type", "loss_average"), [("grpo", "responses"), ("bnpo", "tokens")])
def test_grpos_loss_is_trls(tmp_path: Path, loss_type: str, loss_average: str) -> None:
    batch, policy = batch_and_model()
    advantages = group_relative(SCORES, batch.groups)
    peer = trainer("GRPO", policy, tmp_path, beta=0.05, epsilon=0.2, loss_type=loss_type, use_bias_correction_kl=False)
    with torch.no_grad():
        expected = float(peer._compute_loss(peer.model, inputs(batch, advantages)))
    found = ours("grpo", batch, policy, advantages, 0.05, loss_average=loss_average)
    assert found["clip_fraction"] > 0
    assert found["policy_loss"] + 0.05 * found["kl_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_trls_group_advantages_are_ours_with_the_sample_deviation_up_to_its_epsilon() -> None:
    groups = torch.arange(8) // 4
    grouped = SCORES.view(2, 4)
    theirs = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).flatten()
    torch.testing.assert_close(group_relative(SCORES, groups, "sample"), theirs, atol=1e-3, rtol=1e-3)
    left_out = (SCORES - (grouped.sum(1, keepdim=True) - grouped).flatten() / 3).float()
    torch.testing.assert_close(leave_one_out(SCORES, groups), left_out)


def test_log_probabilities_and_entropies_are_trls() -> None:
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    torch.manual_seed(0)
    output = torch.nn.Linear(8, 50, bias=False)
    hidden, targets = 3 * torch.randn(9, 8), torch.randint(0, 50, (9,))
    with torch.no_grad():
        logprobs, entropies = token_statistics(hidden, targets, output, chunk=4)
        logits = output(hidden)
    torch.testing.assert_close(logprobs, selective_log_softmax(logits, targets), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, entropy_from_logits(logits), atol=1e-5, rtol=1e-5)


def sequences_of(rows: list[list[int]]) -> list[EncodedSequence]:
    prompts = random_rows(1, [3, 5, 2, 4], ended=False)
    return [EncodedSequence(prompt, row) for prompt, row in zip(prompts, rows, strict=True)]


def pairs_of(chosen: list[EncodedSequence], rejected: list[EncodedSequence], side: str) -> dict[str, torch.Tensor]:
    """TRL's collated batch of pairs, the chosen first; its own padding side is the right one."""
    rows = [*chosen, *rejected]
    ids, mask = pad_rows([[*row.prompt, *row.response] for row in rows], PAD, side)
    completion = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        completion[place, len(row.prompt) : len(row.prompt) + len(row.response)] = 1
    return {"input_ids": ids, "attention_mask": mask.long(), "completion_mask": completion}


CHOSEN, REJECTED = random_rows(2, [6, 1, 3, 7]), random_rows(3, [2, 5, 4, 1])


def test_dpos_loss_is_trls(tmp_path: Path) -> None:
    policy, reference = tiny_policy(1), tiny_policy(2)
    chosen, rejected = sequences_of(CHOSEN), sequences_of(REJECTED)
    with torch.no_grad():
        ours, theirs = (sequence_logprobs(model, [*chosen, *rejected]).view(2, -1).T for model in (policy, reference))
    losses, margins = preference_loss(ours - theirs, 0.3)
    peer = preference_trainer("DPO", policy, tmp_path, beta=0.3)
    peer.ref_model.load_state_dict(reference.model.state_dict())
    batch = pairs_of(chosen, rejected, "right")
    with torch.no_grad():
        expected = float(peer.compute_loss(peer.model, batch))
    assert float(losses.mean()) == pytest.approx(expected, rel=1e-4)
    assert float(margins.abs().sum()) > 0


def test_the_pairwise_loss_of_a_last_token_reward_model_is_trls(tmp_path: Path) -> None:
    policy = tiny_policy(1)
    ours_model = ScalarModel.from_language_model(policy.model, heads=("reward",), seed=3)
    chosen, rejected = sequences_of(CHOSEN), sequences_of(REJECTED)
    segmented = [[SegmentedSequence(row, [len(row.response) - 1]) for row in side] for side in (chosen, rejected)]
    with torch.no_grad():
        expected_scores = head_evaluations(ours_model, segmented[0], segmented[1], PAD)["reward"]
        loss = -torch.nn.functional.logsigmoid(expected_scores[0] - expected_scores[1]).mean()
    peer = preference_trainer("Reward", policy, tmp_path)
    with torch.no_grad():
        peer.model.score.weight.copy_(ours_model.heads["reward"].weight)  # type: ignore[arg-type]
        found = float(peer.compute_loss(peer.model, pairs_of(chosen, rejected, "right")))
    assert float(loss) == pytest.approx(found, rel=1e-4)


def preference_trainer(kind: str, policy: Any, folder: Path, **options: Any) -> Any:
    """TRL's trainer of pairs on a saved copy of the model, in float32 on the CPU."""
    from datasets import Dataset

    tokenizer = saved(policy, folder)
    arguments = getattr(trl, f"{kind}Config")(
        output_dir=str(folder / "out"), bf16=False, use_cpu=True, report_to=[], gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"}, **options,
    )  # fmt: skip
    pairs = Dataset.from_dict({"prompt": ["5 6"] * 2, "chosen": ["7 8"] * 2, "rejected": ["9"] * 2})
    made = getattr(trl, f"{kind}Trainer")(
        model=str(folder), args=arguments, processing_class=tokenizer, train_dataset=pairs
    )
    made.model.eval()
    return made


def test_rloos_loss_is_trls_clipped_surrogate_over_whole_responses(tmp_path: Path) -> None:
    """At the first update both have one gradient direction; off policy TRL's ratio is of the whole response."""
    batch, policy = batch_and_model()
    with torch.no_grad():
        now = policy.statistics(batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask).logprobs
    batch = replace(batch, logprobs=now, reference_logprobs=now)
    advantages = leave_one_out(SCORES, batch.groups)
    peer = trainer("RLOO", policy, tmp_path, beta=0.0, epsilon=0.2)
    loss = peer._compute_loss(peer.model, {**inputs(batch, advantages), "old_logps": now.sum(dim=1)})
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-float(advantages.mean()), abs=1e-5)
    theirs = torch.cat([p.grad.flatten() for p in peer.model.parameters() if p.grad is not None])
    ours("rloo", batch, policy, advantages, 0.0, max_grad_norm=1e9)
    found = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    tokens_per_response = float(batch.responses.mask.sum()) / len(batch)
    torch.testing.assert_close(tokens_per_response * found, theirs, atol=1e-4, rtol=1e-3)
