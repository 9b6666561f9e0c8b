"""Settings of what a row starts from: backbone, tokenizer, entropy cutoffs, and the finder of sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from rlhf_core.data.tokenizers import least_vocabulary
from rlhf_core.errors import RecipeError
from rlhf_core.models.architecture import check_architecture
from rlhf_core.segmentation.sat import TaggerConfig
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.typed import Checked, Count, Seed, Share, at_least, between, one_of
from tasks.params.parts import TRUE_REWARDS, Need

#: Number formats of a backbone's weights.
PRECISION_NAMES = ("float32", "bf16")
#: Attention kernels by name, as transformers has them.
ATTENTION_NAMES = ("eager", "sdpa", "flash_attention_2")


@dataclass(frozen=True)
class BackboneSpec(Checked):
    """A backbone: `source` loads one, `architecture` builds one.

    Args:
        data, tokenizer, evaluation: names of the scale's files that belong to it; the graph resolves them.
        architecture: fields of the transformers configuration, with `model_type`.
        examples: training examples at most, drawn once, whatever the seed; None for all.
        seed: of its fine-tuning, one SFT model for all seeds of rows; None for one SFT model for each.
        precision: of its weights, in every later stage; None for bf16 on GPUs that have it, else float32.
        attention: in every later stage; None for flash attention where a GPU has it, else the model's own.
    """

    data: str
    tokenizer: str
    evaluation: str
    source: str | None = None
    architecture: Mapping[str, Any] | None = None
    training: TrainingConfig | None = None
    examples: Count | None = None
    seed: Seed | None = None
    precision: Annotated[str, one_of(PRECISION_NAMES)] | None = None
    attention: Annotated[str, one_of(ATTENTION_NAMES)] | None = None

    def _check_together(self) -> None:
        if (self.source is None) == (self.architecture is None):
            raise RecipeError("give either 'source' (a model to load) or 'architecture' (one to build)")
        if self.attention == "flash_attention_2" and self.precision != "bf16":
            raise RecipeError("attention is 'flash_attention_2', which computes in 16 bits; set precision: bf16")
        if self.source is None and self.training is None:
            raise RecipeError("a backbone built from 'architecture' needs 'training'")
        if self.examples is not None and self.training is None:
            raise RecipeError(
                f"examples is {self.examples}, but without 'training' nothing is fine-tuned; leave it out"
            )
        if self.architecture is not None:
            if not isinstance(kind := self.architecture.get("model_type"), str):
                raise RecipeError(
                    f"architecture: model_type is {kind!r}; it must be the name of a transformers model, as in "
                    "{model_type: llama}"
                )
            try:
                check_architecture(self.architecture)
            except RecipeError as error:
                raise RecipeError(f"architecture: {error}") from None


@dataclass(frozen=True)
class TokenizerSpec(Checked):
    """A tokenizer: `source` loads one, `vocabulary` trains one.

    Args:
        vocabulary: tokens of a trained one, special ones included.
        full_byte_alphabet: a trained one knows all 256 bytes, so it can spell any text.
    """

    source: str | None = None
    vocabulary: Annotated[int, at_least(1)] | None = None
    full_byte_alphabet: bool = True

    def _check_together(self) -> None:
        if (self.source is None) == (self.vocabulary is None):
            raise RecipeError("give either 'source' (a tokenizer to load) or 'vocabulary' (one to train)")
        least = least_vocabulary(full_byte_alphabet=self.full_byte_alphabet)
        if self.vocabulary is not None and self.vocabulary < least:
            remedy = ", or full_byte_alphabet: false" if self.full_byte_alphabet else ""
            raise RecipeError(
                f"vocabulary is {self.vocabulary}; special tokens and bytes alone are {least}: give at least {least}"
                f"{remedy}"
            )


@dataclass(frozen=True)
class Cutoff(Checked):
    """An entropy cutoff: a quantile of the training responses' entropies, or a number of nats."""

    quantile: Share | None = None
    nats: Annotated[float, at_least(0)] | None = None

    def _check_together(self) -> None:
        if (self.quantile is None) == (self.nats is None):
            raise RecipeError("give either 'quantile' or 'nats'")


@dataclass(frozen=True)
class EntropySpec(Checked):
    """Entropy cutoffs by the name that a recipe uses: `"1.75": {quantile: .7}` or `"1.75": {nats: 1.75}`."""

    cutoffs: Mapping[str, Cutoff]


@dataclass(frozen=True)
class SegmenterSpec(Checked):
    """A SaT model.

    Args:
        source: 'train' makes one, 'load' takes one.
        model: of 'load', a folder or a hub id such as sat-3l.
        gold: of 'train', where true sentences come from: 'clauses' of the testbed's preference data, or the name of a
            set with sentence spans (`ewt_sentences`) in the folder that REWARDSMITH_DATA names.
        max_sentence_chars: longer sentences are cut again at punctuation.
        threshold: probability above which a character ends a sentence; None for .5, or a released model's own.
    """

    source: Annotated[str, one_of(("train", "load"))]
    model: str | None = None
    gold: str | None = None
    tagger: TaggerConfig = field(default_factory=TaggerConfig)
    training: TrainingConfig | None = None
    texts: Count = 4000
    seed: Seed = 0
    max_sentence_chars: Count = 256
    threshold: Annotated[float, between(0, 1)] | None = None

    def _check_together(self) -> None:
        if (self.source == "load") != (self.model is not None) or (self.source == "train") != (self.gold is not None):
            raise RecipeError("source 'load' needs 'model' and no 'gold', source 'train' needs 'gold' and no 'model'")
        if self.source == "train" and self.training is None:
            raise RecipeError("source 'train' needs 'training'")
        if self.training is not None and self.training.gradient_checkpointing is not None:
            raise RecipeError(
                "training.gradient_checkpointing is of language models; leave it out of a segmenter's training"
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(TRUE_REWARDS, "gold", self.gold),) if self.gold == "clauses" else ()
