"""Reward models that read whole texts: Hugging Face classifiers with one output, and zero-shot models that are asked.

They exchange texts with a policy, not tokens, so the two may be of different families. A classifier's reward is what
transformers computes from the conversation that the tokenizer's own chat template writes; a zero-shot model's result
holds settings in place of weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_core import distributed
from rlhf_core.data.encoding import Encoder, Limits
from rlhf_core.data.templates import chat_template
from rlhf_core.data.tokenizers import token_spans
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.architecture import POSITIONS
from rlhf_core.models.folders import check_classifier, is_hub_classifier
from rlhf_core.models.loading import load_tokenizer
from rlhf_core.models.policy import pad_rows
from rlhf_core.passes import RowTokens
from rlhf_core.rewards.zero_shot import ZeroShot, ZeroShotSettings, load_zero_shot
from rlhf_core.rollout import RolloutBatch
from rlhf_core.signals import Sequence as SequenceSignal
from rlhf_core.signals import SignalType
from rlhf_core.stepper import freeze
from rlhf_core.typed import typed
from tasks.running.artifacts import read_json, write_json
from tasks.running.machine import device

Rows = Sequence[Mapping[str, Any]]
#: Tokens of a tokenizer that states no limit; transformers writes a number beyond any.
UNLIMITED = 10**9
#: File of a zero-shot model's settings in a reward model's result.
ZERO_SHOT_FILE = "zero_shot.json"


class TextRewards(Protocol):
    """Rewards of whole responses."""

    def __call__(
        self, rows: Rows, responses: Sequence[str], batch: int | None = None, *, ended: Sequence[bool] | None = None
    ) -> list[float]:
        """Returns the reward of every row with its response.

        Args:
            rows: prompts, dialogues or pairs.
            responses: one for each row.
            batch: rows per forward pass.
            ended: whether each response is complete, all of them unless given.
        """


@dataclass
class ScalarScorer:
    """A Hugging Face classifier with one output, which reads whole responses (`TextRewards`).

    Args:
        model: gives `logits` [batch, 1].
        encoder: its tokenizer with a chat template.
        batch: rows per forward pass.
    """

    model: Any
    encoder: Encoder
    batch: int = 16

    @classmethod
    def load(
        cls, folder: Path, template: str = "tokenizer", prompt: int | None = None, total: int | None = None
    ) -> ScalarScorer:
        """Loads from a folder with config.json and safetensors; no remote code.

        Args:
            folder: of the model.
            template: chat template; `tokenizer` is the tokenizer's own.
            prompt, total: see `limits_of`.

        Raises:
            RecipeError: more tokens than the model reads.
            DataError: nothing that can be loaded, more than one output, no head, no tokenizer, no chat template.
        """
        from transformers import AutoModelForSequenceClassification

        if not (folder / "config.json").is_file():
            raise _not_loaded(folder, "no config.json")
        check_classifier(folder, own_template=template == "tokenizer")
        tokenizer, named = load_tokenizer(folder), chat_template(template)
        try:
            model, loading_info = AutoModelForSequenceClassification.from_pretrained(
                str(folder), dtype=torch.float32, use_safetensors=True, trust_remote_code=False,
                output_loading_info=True,
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError) as error:
            raise _not_loaded(folder, str(error).strip().splitlines()[0]) from None
        if missing := sorted([*loading_info["missing_keys"], *(name for name, *_ in loading_info["mismatched_keys"])]):
            raise DataError(
                f"the weights of {', '.join(missing[:3])} are missing; transformers would make them up at random",
                file=str(folder),
                remedy="Give a model that was saved with its reward head",
            )
        if tokenizer.pad_token_id is None:
            raise DataError(
                "the tokenizer has no pad token",
                file=str(folder / "tokenizer_config.json"),
                field="pad_token",
                remedy="Name the one that the model was trained with, and save the tokenizer again",
            )
        named.check_tokenizer(tokenizer)
        model.config.pad_token_id = tokenizer.pad_token_id
        limits = limits_of(model.config, tokenizer, prompt, total)
        freeze(model)
        return cls(model.to(device()).eval(), Encoder(tokenizer, named, limits))

    @torch.no_grad()
    def __call__(
        self, rows: Rows, responses: Sequence[str], batch: int | None = None, *, ended: Sequence[bool] | None = None
    ) -> list[float]:
        closed = [True] * len(responses) if ended is None else ended
        given = zip(rows, responses, closed, strict=True)
        encoded = [self.encoder.dialogue(row, text, ended=end) for row, text, end in given]
        scores = torch.zeros(len(encoded))
        for chosen in RowTokens([len(each) for each in encoded], packed=False).own_passes(batch or self.batch):
            ids, mask = pad_rows([encoded[i] for i in chosen], self.encoder.pad_id, "right")
            found = self.model(input_ids=ids.to(device()), attention_mask=mask.long().to(device())).logits
            scores[chosen] = found[:, 0].float().cpu()
        values: list[float] = distributed.merged(scores).tolist()
        return values


def _not_loaded(folder: Path, reason: str) -> DataError:
    return DataError(
        f"the reward model cannot be loaded ({reason})",
        file=str(folder),
        remedy="Give the result folder of a reward_model stage, or a folder with a Hugging Face classifier "
        "(config.json, safetensors, tokenizer files)",
    )


def limits_of(
    config: Any, tokenizer: PreTrainedTokenizerBase, prompt: int | None = None, total: int | None = None
) -> Limits:
    """Returns the limits of a model.

    Args:
        prompt: the most tokens of a prompt; None for the share of the total that the defaults have.
        total: the most tokens of prompt and response; None for the model's positions, or what its tokenizer states, if
            that is less.

    Raises:
        RecipeError: a total that is larger.
    """
    usual = Limits()
    stated = [getattr(config, name, None) for name in POSITIONS]
    stated.append(tokenizer.model_max_length if tokenizer.model_max_length < UNLIMITED else None)
    most = min((int(tokens) for tokens in stated if tokens), default=None)
    if total is not None and most is not None and total > most:
        raise RecipeError(f"the model reads at most {most} tokens, not {total}; give a smaller --total-tokens")
    whole = total or most or usual.total
    return Limits(prompt or max(1, whole * usual.prompt // usual.total), whole)


@dataclass(frozen=True)
class ZeroShotModel:
    """A zero-shot model with the words that say the task where prompts alone do not (translation); `TextRewards`."""

    model: ZeroShot
    instruction: str

    @classmethod
    def load(cls, reward_model: Path) -> ZeroShotModel:
        """Loads from a reward model's result."""
        found = read_json(reward_model / ZERO_SHOT_FILE)
        settings = typed(ZeroShotSettings, found["settings"], str(reward_model / ZERO_SHOT_FILE))
        return cls(load_zero_shot(settings, str(device())), str(found["instruction"]))

    def __call__(
        self, rows: Rows, responses: Sequence[str], batch: int | None = None, *, ended: Sequence[bool] | None = None
    ) -> list[float]:
        prompts = [self.instruction + str(row["prompt"]) for row in rows]
        return distributed.on_main(lambda: self.model.rewards(prompts, responses))


def write_zero_shot_settings(result: Path, settings: ZeroShotSettings, data: Path) -> None:
    """Writes the settings of a zero-shot model, and the words before each prompt."""
    instruction = str(read_json(data / "data.json").get("instruction", ""))
    write_json(result / ZERO_SHOT_FILE, {"settings": asdict(settings), "instruction": instruction})


def is_zero_shot(reward_model: Path) -> bool:
    """Returns whether a reward model's result holds a zero-shot model."""
    return (reward_model / ZERO_SHOT_FILE).exists()


def load_text_rewards(reward_model: Path) -> TextRewards | None:
    """Returns a reward model that reads whole texts; None for one that was trained here, which reads tokens."""
    if is_zero_shot(reward_model):
        return ZeroShotModel.load(reward_model)
    return ScalarScorer.load(reward_model) if is_hub_classifier(reward_model) else None


@dataclass(frozen=True)
class RolloutTexts:
    """Scores the texts of rollouts; a response that the length limit cut is read without its end token.

    Args:
        rewards: of the texts.
        tokenizer: of the policy, whose tokens are spelled out.
        microbatch: rows per forward pass.
    """

    rewards: TextRewards
    tokenizer: PreTrainedTokenizerBase
    microbatch: int = 16
    gives: SignalType = SequenceSignal

    def score(self, batch: RolloutBatch) -> SequenceSignal:
        """Returns [batch] rewards; padding and the other rows do not change them."""
        mask = batch.responses.mask
        tokens = zip(batch.responses.ids.cpu(), mask.cpu(), strict=True)
        texts = [token_spans(self.tokenizer, ids[real].tolist())[0] for ids, real in tokens]
        rows = [{**record, "prompt": text} for record, text in zip(batch.records, batch.prompts, strict=True)]
        found = self.rewards(rows, texts, self.microbatch, ended=batch.responses.ended.tolist())
        return SequenceSignal(torch.tensor(found, device=mask.device))
