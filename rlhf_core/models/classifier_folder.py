"""Folders of Hugging Face reward models: sequence classifiers with one output, checked without their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
CLASSIFIER = "ForSequenceClassification"
#: Files of which a folder with a tokenizer has at least one.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
#: Files with a chat template of their own, beside the field of tokenizer_config.json.
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


def is_hub_classifier(folder: Path) -> bool:
    """Returns whether a folder holds a Hugging Face classifier, and not a reward model of this project."""
    return (folder / CONFIG).is_file() and not (folder / "reward_model.json").is_file()


def check_given_reward_model(folder: Path) -> None:
    """Refuses a folder that is no reward model; one that does not exist may still be made by a stage.

    Raises:
        DataError: names the file, and what a reward model's folder has.
    """
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
    """Refuses a classifier that is no reward model, or that cannot be read.

    Args:
        folder: with config.json.
        own_template: whether the tokenizer's chat template is used.

    Raises:
        DataError: names the file and the field, and what to do.
    """
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
    if not any(folder.glob("*.safetensors")):
        raise DataError(
            "no weights in safetensors, the only format that is loaded",
            file=str(folder),
            remedy="Download them, or save the model once by save_pretrained",
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise DataError(
            "no tokenizer beside the model, which reads texts by its own",
            file=str(folder),
            remedy="Save its tokenizer into the same folder: tokenizer.save_pretrained",
        )
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
