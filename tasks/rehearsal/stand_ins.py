"""Stand-ins of a rehearsal for the models of a scale: tiny, with random weights, of the same architecture class.

A model that the hub's cache has keeps its own tokenizer and its configuration's fields beside the sizes. Any other one
has a tokenizer of its family that is trained on the rehearsal's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_core.errors import RecipeError, hint
from rlhf_core.models.architecture import known_models

#: Fields that a tiny configuration takes from the model that it stands for.
KEPT = ("max_position_embeddings", "tie_word_embeddings", "feed_forward_proj")
#: A llama of at most so many tokens has the tokenizer of Llama 2.
LLAMA2_TOKENS = 33_000


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
                self._write_family(source, self.tree / folder)
        return folder

    def _write_family(self, source: str, folder: Path) -> None:
        from rlhf_core.models.families import FAMILIES, published

        architecture = known_models().get(source)
        if architecture is None:
            raise RecipeError(
                f"the architecture of {source} is not known here, so it cannot be rehearsed; download its config.json "
                "and tokenizer (`hf download`), or add its sizes to rlhf_core/models/architectures.yaml"
            )
        family = str(architecture["model_type"])
        if family == "llama" and int(architecture["vocab_size"]) <= LLAMA2_TOKENS:
            family = "llama2"
        if family not in FAMILIES:
            raise RecipeError(f"model type '{family}' of {source} cannot be rehearsed{hint(family, FAMILIES)}")
        published(family, self.texts, folder, {name: architecture[name] for name in KEPT if name in architecture})

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


def _write_from_cache(source: str, folder: Path) -> bool:
    """Writes a stand-in with the tokenizer and configuration of a folder or the hub's cache; returns whether they are
    there."""
    from transformers import AutoConfig, AutoTokenizer

    from rlhf_core.models.architecture import make_tiny
    from rlhf_core.models.families import save_random

    try:
        config = AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
        words = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        return False
    save_random(make_tiny(config), folder, config.dtype)
    words.save_pretrained(folder)
    return True
