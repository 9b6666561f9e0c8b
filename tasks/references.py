"""Stage `references`: M responses of the SFT model to each training prompt, scored by a reward model.

One artifact serves every row that reads the reward model, whatever its read-out, normaliser and number of references:
references.safetensors holds each response's tokens, the SFT model's entropies and each head's value at every token (of
a Hugging Face classifier, one reward of each response); references.json the prompt ids in order, the number of
responses, and as `constants` which statement of a shaping's constant holds at this scale. A row turns them into
reference rewards e(x, y_ref^m) of its own component: read, normalised, and for segments averaged. metrics.json is of
the first head, read at the segmenter that it was trained with and not normalised. Source: PAR, §3.2 and Algorithm 2.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlhf_core.data.batching import rows_by_length
from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.normalisers import NoNormaliser
from rlhf_core.policy_optimisation.experience import EncodedPrompt, collect
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.segmentation.segmenters import build_segmenter
from tasks.params.reward_model import ReferencesSpec
from tasks.running.artifacts import first_rows, read_jsonl, write_json
from tasks.running.loading import load_encoder, load_policy
from tasks.running.progress import progress
from tasks.running.stage import PageEntry, stage
from tasks.scoring.classifiers import RolloutTexts, load_text_rewards
from tasks.scoring.references import REWARDS, load_references
from tasks.scoring.reward_models import TrainedModel

VERSION = 2


def make_references(
    scale: Annotated[ReferencesSpec, PageEntry("reference settings (YAML)")],
    data: Path,
    sft: Path,
    reward_model: Path,
    seed: int,
    result: Path,
    sentences: Path | None = None,
) -> None:
    """Writes the SFT model's reference responses and a reward model's values at their tokens."""
    encoder = load_encoder(data, sft / "model")
    if scale.prompt_limit is not None:
        encoder = replace(encoder, limits=replace(encoder.limits, prompt=scale.prompt_limit))
    scorer = _reader(reward_model, sentences, encoder)
    file = data / "prompts.jsonl"
    rows = first_rows(read_jsonl(file), scale.prompts, "prompts", file)
    names = prompt_ids(rows, file)
    stored = sample(encoder, sft, scorer, rows, scale, seed)
    save_file(stored, result / "references.safetensors")
    facts = {"prompts": names, "responses": scale.responses, "constants": scale.constants}
    write_json(result / "references.json", facts)
    references = load_references(result, scorer, NoNormaliser(), encoder.tokenizer)
    rewards, units = torch.stack(list(references.rewards.values())), references.units
    write_json(
        result / "metrics.json",
        {
            "prompts": float(len(names)),
            "responses": float(rewards.numel()),
            "reward_mean": units.mean,
            "reward_std": units.deviation,
            "reward_std_within_prompts": float(rewards.double().std(dim=1, correction=0).mean()),
            "length": units.length,
            "truncated": float((~stored["ended"]).double().mean()),
        },
    )


def _reader(reward_model: Path, sentences: Path | None, encoder: Encoder) -> RewardModelScorer | RolloutTexts:
    """Returns how a reward model's first head is read at the segmenter of its training.

    Raises:
        RecipeError: a model whose values at the response's own tokens are not its rewards.
    """
    if (rewards := load_text_rewards(reward_model)) is not None:
        return RolloutTexts(rewards, encoder.tokenizer)
    trained = TrainedModel.load(reward_model / "model")
    if trained.settings.get("end_token"):
        raise RecipeError(
            f"{reward_model}: the reward model reads end tokens, and reference rewards are kept as its values "
            "at the response's own tokens; use a reward model with end_token: false"
        )
    head = next(iter(trained.model.heads))
    return RewardModelScorer(trained.model, trained.segmenter(sentences), head=head, tokenizer=encoder.tokenizer)


def prompt_ids(rows: list[dict[str, Any]], file: Path) -> list[str]:
    """Returns the prompts' ids, by which reference rewards are found.

    Raises:
        DataError: a prompt without an id, or two with the same.
    """
    seen: dict[str, None] = {}
    for number, row in enumerate(rows, start=1):
        name = str(row.get("id", ""))
        if not name or name in seen:
            problem = f"two prompts are called '{name}'" if name else "the prompt has no id"
            raise DataError(problem, file=str(file), row=number, field="id", remedy="Reference rewards go by id")
        seen[name] = None
    return list(seen)


@torch.no_grad()
def sample(
    encoder: Encoder,
    sft: Path,
    scorer: RewardModelScorer | RolloutTexts,
    rows: list[dict[str, Any]],
    spec: ReferencesSpec,
    seed: int,
) -> dict[str, Tensor]:
    """Returns the flat tensors over all responses, prompt by prompt: tokens, entropies, values of each of the reward
    model's heads (of a classifier `rewards` of whole responses), and each one's length.

    Prompts are batched by length; responses are in the order of the rows.
    """
    policy = load_policy(sft / "model", encoder)
    policy.model.eval()
    prompts = [EncodedPrompt(encoder.prompt(row), row["prompt"], row) for row in rows for _ in range(spec.responses)]
    generator = torch.Generator().manual_seed(random.Random(f"references-{seed}").getrandbits(63))
    # token values do not depend on the segmenter, which a scorer must have
    bandit, heads = build_segmenter({"kind": "bandit"}), dict[str, RewardModelScorer]()
    if isinstance(scorer, RewardModelScorer):
        heads = {f"values.{h}": RewardModelScorer(scorer.model, bandit, head=h) for h in scorer.model.heads}
    columns = {name: [torch.zeros(0)] * len(prompts) for name in ("ids", "entropies", *heads)}
    ended, rewards = torch.zeros(len(prompts), dtype=torch.bool), torch.zeros(len(prompts))
    batches = rows_by_length([len(prompt.ids) for prompt in prompts], spec.batch)
    with progress(f"references seed {seed}", len(batches)) as advance:
        for places in batches:
            chosen = [prompts[i] for i in places]
            # the SFT model is its own reference policy
            batch = collect(policy, policy, encoder.tokenizer, chosen, spec.sampling, generator)
            entropies = batch.responses.entropies
            assert entropies is not None
            found = {"ids": batch.responses.ids.int(), "entropies": entropies}
            found |= {name: head.token_values(batch) for name, head in heads.items()}
            if isinstance(scorer, RolloutTexts):
                rewards[places] = scorer.score(batch).values.cpu()
            for name, values in found.items():
                for i, row, mask in zip(places, values.cpu(), batch.responses.mask.cpu(), strict=True):
                    columns[name][i] = row[mask].clone()
            ended[places] = batch.responses.ended.cpu()
            advance()
    stored = {name: torch.cat(values) for name, values in columns.items()}
    stored |= {REWARDS: rewards} if isinstance(scorer, RolloutTexts) else {}
    return {**stored, "lengths": torch.tensor([len(row) for row in columns["ids"]], dtype=torch.int32), "ended": ended}


main = stage(make_references)
