"""Stand-ins of a rehearsal for the models of a scale: tiny, with random weights, of the same architecture class.

Their tokenizer is trained on the rehearsal's rows and knows the markers of every chat template.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.models.architecture import known_configuration, make_tiny

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Tokens of a trained tokenizer.
VOCABULARY = 512


def language_model(source: str, texts: Sequence[str], folder: Path) -> None:
    """Writes the stand-in for a language model into a folder, once; it has always the same random weights.

    Raises:
        RecipeError: a model of unknown architecture.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    if folder.exists():
        return
    config, words = make_tiny(known_configuration(source)), _trained(tuple(texts))
    config.vocab_size = len(words)
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind.from_config(config, dtype=config.dtype or torch.float32).save_pretrained(folder)
    words.save_pretrained(folder)


def sentence_model(model: str, texts: Sequence[str], folder: Path) -> None:
    """Writes the stand-in for a SaT model into a folder."""
    from rlhf_core.segmentation.boundary_tagger import build_tagger, save_tagger, train_tokenizer
    from rlhf_core.segmentation.sat import TaggerConfig

    layers = next((int(letter) for letter in model if letter.isdigit()), 1)
    config = TaggerConfig(layers=layers, hidden=16, heads=2, vocabulary=320)
    words = train_tokenizer(texts, config.vocabulary)
    save_tagger(build_tagger(config, words, 0), words, folder, threshold=0.5, max_sentence_chars=256)


@lru_cache(maxsize=1)
def _trained(texts: tuple[str, ...]) -> PreTrainedTokenizerBase:
    """Returns a tokenizer of texts that knows the markers of every chat template; its own is that of Phi-3."""
    from rlhf_core.data.templates import TEMPLATES, hub_template
    from rlhf_core.data.tokenizers import train_byte_level_bpe

    named = [template for template in TEMPLATES.values() if template.turns]
    written = " ".join(text for one in named for text in (one.begin, one.eos, *sum(one.turns.values(), ())))
    words = train_byte_level_bpe(
        texts, VOCABULARY, re.findall(r"<[^<>\s]+>", written), eos_token="</s>", bos_token="<s>"
    )
    words.chat_template = hub_template(TEMPLATES["phi3"], words)
    return words
