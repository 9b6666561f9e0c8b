"""Model card of an exported model (`model_card.md.j2`): recipe, data, metrics, code, and how it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rlhf_core.errors import RewardsmithError
from tasks.params.pages import Address, read_settings, settings_digest
from tasks.running.artifacts import digest as file_digest
from tasks.running.artifacts import read_json

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
    settings = _settings(record)
    metrics = result if (result / "metrics.json").is_file() else result.parent
    code = {
        "commit": f"{record['commit']}{' with uncommitted changes' if record.get('dirty') else ''}",
        **({} if result.is_absolute() else {"path": result.as_posix()}),
        "versions": dict(record["versions"]),
        "result": record["result_digest"],
        "inputs": dict(record["inputs"]),
    }
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["yaml"] = _block
    seq2seq = read_json(folder / "config.json").get("is_encoder_decoder")
    card = environment.get_template("model_card.md.j2").render(
        header=ModelCardData(library_name="transformers", pipeline_tag=task, tags=[*tags, "rewardsmith"]).to_yaml(),
        title=next((str(one["title"]) for one in settings.values() if one and "title" in one), name),
        name=name,
        record=record,
        reward=reward,
        kind="AutoModelForSeq2SeqLM" if seq2seq else "AutoModelForCausalLM",
        settings=settings,
        data={key: value for key, value in read_json(data / "data.json").items() if key in FACTS},
        metrics=read_json(metrics / "metrics.json"),
        code=code,
        checked=checked,
    )
    (folder / "README.md").write_text(card + "\n", encoding="utf-8")


def _settings(record: Mapping[str, Any]) -> dict[str, dict[str, Any] | None]:
    """Returns the settings that a stage read by their address, None where they have changed since."""
    found: dict[str, dict[str, Any] | None] = {}
    for name, digest in record["inputs"].items():
        address = Address(name)
        if address.file.suffix != ".yaml":
            continue
        try:
            present = file_digest(address.file) if address.key is None else settings_digest(address)
            found[name] = dict(read_settings(address)) if present == digest else None
        except (RewardsmithError, OSError):
            found[name] = None
    return found


def _block(values: Mapping[str, Any]) -> str:
    return f"```yaml\n{yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True).strip()}\n```"
