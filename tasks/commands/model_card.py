"""Model card of an exported model: recipe, data, metrics, code, and how it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCardData

from rlhf_core.errors import RewardsmithError
from tasks.params.pages import Address, read_settings, settings_digest
from tasks.running.artifacts import digest as file_digest
from tasks.running.artifacts import read_json, read_object

REWARD = """import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForSequenceClassification.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
dialogue = [{{"role": "user", "content": "..."}}, {{"role": "assistant", "content": "..."}}]
batch = tokenizer.apply_chat_template([dialogue], padding=True, return_dict=True, return_tensors="pt")
with torch.no_grad():
    reward = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0]"""
POLICY = """from transformers import {kind}, AutoTokenizer

model = {kind}.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
prompt = [{{"role": "user", "content": "..."}}]
batch = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True, return_tensors="pt")
answer = model.generate(
    input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=256, do_sample=True
)"""
#: Fields of data.json that the card shows.
FACTS = ("source", "template", "limits", "seed", "rows", "bayes_ceiling")


def write_card(folder: Path, result: Path, record: Mapping[str, Any], data: Path, name: str, checked: str) -> None:
    """Writes README.md beside an exported model.

    Args:
        folder: of the exported model.
        result: of the stage that trained it.
        record: of that stage.
        data: result of `prepare`.
        name: of the folder, for the example.
        checked: what was compared with the training code.
    """
    reward = record["stage"] == "reward_model"
    task = "text-classification" if reward else "text-generation"
    tags = ["reward-model", "rlhf"] if reward else ["rlhf"]
    header = ModelCardData(library_name="transformers", pipeline_tag=task, tags=[*tags, "rewardsmith"]).to_yaml()
    settings = _settings(record)
    title = next((str(one["title"]) for one in settings.values() if one and "title" in one), name)
    seq2seq = bool(read_json(folder / "config.json").get("is_encoder_decoder"))
    kind = "AutoModelForSeq2SeqLM" if seq2seq else "AutoModelForCausalLM"
    usage = (REWARD if reward else POLICY).format(name=name, kind=kind)
    reads = (
        "The output is the reward of the whole response, read at the token that ends it; its zero has no meaning."
        if reward
        else "The chat template is the one that the model was trained with."
    )
    parts = [
        f"---\n{header}\n---",
        f"# {title}",
        f"Trained by the stage `{record['stage']}` of Rewardsmith. {reads}",
        f"```python\n{usage}\n```",
        "## Recipe",
        *(_entry(address, values) for address, values in settings.items()),
        "## Data",
        _block({key: value for key, value in read_json(data / "data.json").items() if key in FACTS}),
        "## Metrics",
        _metrics(result if (result / "metrics.json").is_file() else result.parent),
        "## Code",
        _block(
            {
                "commit": f"{record['commit']}{' with uncommitted changes' if record.get('dirty') else ''}",
                **({} if result.is_absolute() else {"path": result.as_posix()}),
                "versions": dict(record["versions"]),
                "result": record["result_digest"],
                "inputs": dict(record["inputs"]),
            }
        ),
        f"Checked at export: {checked}.",
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _settings(record: Mapping[str, Any]) -> dict[str, dict[str, Any] | None]:
    """Returns the settings that a stage read by their address, None where they have changed since."""
    found: dict[str, dict[str, Any] | None] = {}
    for name, digest in record["inputs"].items():
        address = Address(name)
        if address.file.suffix != ".yaml":
            continue
        try:
            present = file_digest(address.file) if address.key is None else settings_digest(address)
            same = present == digest
            found[name] = dict(read_settings(address)) if same else None
        except (RewardsmithError, OSError):
            found[name] = None
    return found


def _entry(address: str, values: Mapping[str, Any] | None) -> str:
    if values is None:
        return f"`{address}`: as at the commit below; it has changed since."
    return f"`{address}`:\n\n{_block(values)}"


def _block(values: Mapping[str, Any]) -> str:
    return f"```yaml\n{yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True).strip()}\n```"


def _metrics(result: Path) -> str:
    lines = ["| metric | value |", "|---|---|"]
    lines += [f"| {name} | {value:.6g} |" for name, value in read_object(result / "metrics.json").items()]
    return "\n".join(lines)
