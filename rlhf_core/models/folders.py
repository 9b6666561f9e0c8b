"""Folders of models that somebody else saved, checked without reading their weights and without importing torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
CLASSIFIER = "ForSequenceClassification"
#: Files of a model's folder by part.
PARTS = {
    "configuration (config.json)": ("config.json",),
    "weights (*.safetensors)": ("*.safetensors",),
    "tokenizer (tokenizer.json or tokenizer_config.json)": (
        "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt",
    ),
}  # fmt: skip
#: Files of other forms of a model, and how its folder is made of them.
OTHER_FORMS = {
    "adapter_config.json": "It has an adapter of another model: merge it (peft: merge_and_unload) and save the whole",
    "*.bin": "Pickled weights (*.bin) may run code and are not loaded: convert them once by "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER) in a place that you trust",
    "*.gguf": "GGUF is for inference: give the model from which it was converted",
}
SAVED = "Give a folder that save_pretrained wrote, of the model and of its tokenizer"
#: Files with a chat template of their own, beside the field of tokenizer_config.json.
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


def check_parts(folder: Path) -> None:
    """Refuses a model's folder without one of its parts; says how to make it of the files that are there."""
    for part, names in PARTS.items():
        if not any(any(folder.glob(name)) for name in names):
            remedy = next((said for form, said in OTHER_FORMS.items() if any(folder.glob(form))), SAVED)
            raise DataError(f"the model folder has no {part}", file=str(folder), remedy=remedy)


def is_hub_classifier(folder: Path) -> bool:
    """Returns whether a folder holds a Hugging Face classifier, and not a reward model of this project."""
    return (folder / CONFIG).is_file() and not (folder / "reward_model.json").is_file()


def check_given_reward_model(folder: Path) -> None:
    """Refuses a folder that is no reward model; one that does not exist may still be made by a stage."""
    known = ("model/reward_model.json", "zero_shot.json")
    if not folder.exists() or any((folder / name).is_file() for name in known):
        return
    if not is_hub_classifier(folder):
        inside = (folder / "reward_model.json").is_file()
        raise DataError(
            "this is the model itself" if inside else f"no reward model in this folder: neither {CONFIG} nor model/",
            file=str(folder),
            field="given",
            remedy="Name the folder that holds model/"
            if inside
            else "Name the result of a reward_model stage (with model/reward_model.json), or a folder with a Hugging "
            f"Face sequence classifier ({CONFIG}, safetensors, tokenizer)",
        )
    check_classifier(folder)


def check_classifier(folder: Path, *, own_template: bool = True) -> None:
    """Refuses a classifier that is no reward model, or has no chat template where its `own_template` is used."""
    config = _read(folder / CONFIG)
    kinds = [str(kind) for kind in config.get("architectures") or ()]
    if kinds and not any(kind.endswith(CLASSIFIER) for kind in kinds):
        raise DataError(
            f"the model is a {kinds[0]}, which has no reward head; transformers would add a random one",
            file=str(folder / CONFIG),
            field="architectures",
            remedy=f"Give a model that was saved as ...{CLASSIFIER}; `rewardsmith export` saves a reward model so",
        )
    outputs = len(config["id2label"]) if config.get("id2label") else int(config.get("num_labels", 2))
    if outputs != 1:
        raise DataError(
            f"the classifier has {outputs} outputs; a reward model has one",
            file=str(folder / CONFIG),
            field="num_labels",
            remedy="Give a model that was trained with num_labels=1",
        )
    check_parts(folder)
    if own_template and not _has_template(folder):
        raise DataError(
            "the tokenizer has no chat template, so the form in which the model reads dialogues is not known",
            file=str(folder / TOKENIZER_CONFIG),
            field="chat_template",
            remedy="Set tokenizer.chat_template to the one that the model was trained with and save the tokenizer "
            "again; bench-reward also takes --template",
        )


def _has_template(folder: Path) -> bool:
    if any((folder / name).is_file() for name in TEMPLATE_FILES):
        return True
    return (folder / TOKENIZER_CONFIG).is_file() and bool(_read(folder / TOKENIZER_CONFIG).get("chat_template"))


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"not valid JSON ({error})", file=str(path), remedy="Download it again") from None
    return found
