"""Stand-ins of a rehearsal for the models of a scale: tiny, with random weights, of the same architecture class.

A model that the hub's cache has keeps its own tokenizer and its configuration's fields beside the sizes. Any other one
has a tokenizer that is trained on the rehearsal's rows and knows the markers of every chat template.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.models.architecture import known_configuration, make_tiny

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

#: Tokens of a trained tokenizer.
VOCABULARY = 512


@dataclass
class StandIns:
    """The stand-ins of one rehearsal.

    Attributes:
        tree: the rehearsal's folder.
        texts: that tokenizers are trained on.
        tokenizers: whose tokenizer the stand-in for each model has.
    """

    tree: Path
    texts: Sequence[str]
    tokenizers: dict[str, str] = field(default_factory=dict)

    def of(self, source: str) -> str:
        """Returns the folder of the stand-in for a language model, relative to the tree.

        Raises:
            RecipeError: a model of unknown architecture.
        """
        folder = f"hub/{source.replace('/', '--')}"
        if source not in self.tokenizers:
            from_cache = _write_from_cache(source, self.tree / folder)
            self.tokenizers[source] = "its own tokenizer" if from_cache else "a tokenizer trained on the rows"
            if not from_cache:
                config, words = make_tiny(known_configuration(source)), _trained(self.texts)
                config.vocab_size = len(words)
                _save_random(config, self.tree / folder)
                words.save_pretrained(self.tree / folder)
        return folder

    def sentences(self, model: str) -> str:
        """Returns the folder of the stand-in for a SaT model, relative to the tree."""
        from rlhf_core.segmentation.boundary_tagger import build_tagger, save_tagger, train_tokenizer
        from rlhf_core.segmentation.sat import TaggerConfig

        folder = f"hub/{model.replace('/', '--')}"
        layers = next((int(letter) for letter in model if letter.isdigit()), 1)
        config = TaggerConfig(layers=layers, hidden=16, heads=2, vocabulary=320)
        words = train_tokenizer(self.texts, config.vocabulary)
        save_tagger(build_tagger(config, words, 0), words, self.tree / folder, threshold=0.5, max_sentence_chars=256)
        self.tokenizers[model] = "a tokenizer trained on the rows"
        return folder


def _trained(texts: Sequence[str]) -> PreTrainedTokenizerBase:
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


def _save_random(config: PreTrainedConfig, folder: Path) -> None:
    """Writes a model of a configuration with random weights, always the same ones."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind.from_config(config, dtype=config.dtype or torch.float32).save_pretrained(folder)


def _write_from_cache(source: str, folder: Path) -> bool:
    """Writes a stand-in with the tokenizer and configuration of a folder or the hub's cache; returns whether they are
    there."""
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
        words = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        return False
    _save_random(make_tiny(config), folder)
    words.save_pretrained(folder)
    return True
