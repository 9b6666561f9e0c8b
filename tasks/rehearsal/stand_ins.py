"""Stand-ins of a rehearsal for the models of a scale: tiny, with random weights, of the same architecture class.

A model that the hub's cache has keeps its own tokenizer and its configuration's fields beside the sizes. Any other one
has a tokenizer of its family that is trained on the rehearsal's rows, with the family's special tokens and template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.models.architecture import known_models

#: Folder of the stand-ins in a rehearsal's tree.
HUB = "hub"
#: File of a stand-in that says whose tokenizer it has, written last.
TOKENIZER_OF = "tokenizer_of.txt"
#: Fields that a tiny configuration takes from the model that it stands for.
KEPT = ("max_position_embeddings", "tie_word_embeddings", "feed_forward_proj")
#: A llama of at most so many tokens has the tokenizer of Llama 2.
LLAMA2_TOKENS = 33_000
#: Hidden units, layers and heads of a tiny finder of sentences.
SENTENCES: dict[str, int] = {"hidden": 16, "heads": 2, "vocabulary": 320}


@dataclass
class StandIns:
    """The stand-ins of one rehearsal.

    Attributes:
        tree: the rehearsal's folder.
        texts: that tokenizers are trained on.
        made: by model: the stand-in's folder relative to the tree, and whose tokenizer it has.
    """

    tree: Path
    texts: Sequence[str]
    made: dict[str, tuple[str, str]] = field(default_factory=dict)

    def of(self, source: str) -> str:
        """Returns the folder of the stand-in for a language model, relative to the tree.

        Raises:
            RecipeError: a model of unknown architecture.
        """
        if source not in self.made:
            folder = f"{HUB}/{source.replace('/', '--')}"
            note = self.tree / folder / TOKENIZER_OF
            if not note.exists():
                own = self._write(source, self.tree / folder)
                note.write_text(own, encoding="utf-8")
            self.made[source] = folder, note.read_text(encoding="utf-8")
        return self.made[source][0]

    def _write(self, source: str, folder: Path) -> str:
        """Writes a stand-in; returns whose tokenizer it has."""
        if _from_cache(source, folder):
            return "own"
        from rlhf_core.models.families import published

        architecture = known_models().get(source)
        if architecture is None:
            raise RecipeError(
                f"the architecture of {source} is not known here, so it cannot be rehearsed; download its config.json "
                "and tokenizer (`hf download`), or add its sizes to rlhf_core/models/architectures.yaml"
            )
        own = {name: architecture[name] for name in KEPT if name in architecture}
        published(family_of(architecture), self.texts, folder, own)
        return "trained"

    def with_head(self, source: str) -> str:
        """Returns the folder of a stand-in with one output whose head is named as UltraRM's, relative to the tree."""
        import torch
        from safetensors.torch import load_file, save_file
        from transformers import AutoModelForSequenceClassification

        plain = self.of(source)
        folder = f"{plain}--head"
        if f"{source} (head)" not in self.made:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = AutoModelForSequenceClassification.from_pretrained(self.tree / plain, num_labels=1)
            model.save_pretrained(self.tree / folder)
            weights = load_file(self.tree / folder / "model.safetensors")
            weights = {name.replace("score.", "regression_head."): value for name, value in weights.items()}
            save_file(weights, self.tree / folder / "model.safetensors", metadata={"format": "pt"})
            for file in (self.tree / plain).glob("*token*"):
                (self.tree / folder / file.name).write_bytes(file.read_bytes())
            self.made[f"{source} (head)"] = folder, self.made[source][1]
        return folder

    def sentences(self, model: str) -> str:
        """Returns the folder of the stand-in for a SaT model, relative to the tree."""
        from rlhf_core.segmentation.boundary_tagger import build_tagger, save_tagger, train_tokenizer
        from rlhf_core.segmentation.tagger_config import TaggerConfig

        folder = f"{HUB}/{model.replace('/', '--')}"
        if model not in self.made:
            layers = next((int(letter) for letter in model if letter.isdigit()), 1)
            config = TaggerConfig(layers=layers, **SENTENCES)
            words = train_tokenizer(self.texts, config.vocabulary)
            tagger = build_tagger(config, words, 0)
            save_tagger(tagger, words, self.tree / folder, threshold=0.5, max_sentence_chars=256)
            self.made[model] = folder, "trained"
        return folder


def family_of(architecture: Mapping[str, Any]) -> str:
    """Returns the family of `rlhf_core.models.families` that a configuration's fields belong to.

    Raises:
        RecipeError: a model type without a family.
    """
    from rlhf_core.models.families import FAMILIES

    kind = str(architecture["model_type"])
    if kind == "llama" and int(architecture["vocab_size"]) <= LLAMA2_TOKENS:
        return "llama2"
    if kind not in FAMILIES:
        raise RecipeError(
            f"model type '{kind}' has no family to rehearse with ({', '.join(FAMILIES)}); download the model's "
            "config.json and tokenizer (`hf download`)"
        )
    return kind


def _from_cache(source: str, folder: Path) -> bool:
    """Writes a stand-in with the tokenizer and configuration in the hub's cache, or in a folder; returns whether they
    are there."""
    from transformers import AutoConfig, AutoTokenizer

    from rlhf_core.models.families import save_random
    from rlhf_core.models.tiny import make_tiny

    try:
        config = AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
        words = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        return False
    save_random(make_tiny(config), folder, config.dtype)
    words.save_pretrained(folder)
    return True
