"""Export of a trained model to a folder as the Hugging Face hub has it, with a model card.

The folder is read back by transformers alone before it gets its name: a reward model's scores of validation responses
and a policy's prompts must be those of this project.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from transformers import PreTrainedTokenizerBase

from rlhf_core.data.dialogue import prompt_messages
from rlhf_core.data.encoding import Encoder
from rlhf_core.data.templates import TokenizerTemplate, hub_template
from rlhf_core.errors import DataError, NumericsError, RecipeError, RewardsmithError
from rlhf_core.models.loading import load_language_model, load_tokenizer, save_model
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.aggregation import build_aggregation
from rlhf_core.rewards.exported import as_classifier, check_one_read, load_classifier
from tasks.params.pages import Address, read_settings, settings_digest
from tasks.running.artifacts import digest, read_json, read_jsonl, read_object
from tasks.running.launch import prepare_process
from tasks.running.loading import load_encoder
from tasks.running.machine import device
from tasks.running.result_digests import RECORD, check_result
from tasks.scoring.reward_models import TrainedScorer, model_folder, upstream

#: Largest difference of a score, relative to the largest score where that is above 1.
TOLERANCE = 1e-5
#: Responses or prompts that are read back.
PROBES = 8
#: Files of a data set with pairs, the first that exists.
PAIRS = ("preference.validation.jsonl", "preference.train.jsonl")
#: Fields of data.json that the card shows.
FACTS = ("source", "template", "limits", "seed", "rows", "bayes_ceiling")


@dataclass(frozen=True)
class ExportedModel:
    """A trained model to be exported.

    Attributes:
        result, model, record: of its stage, the folder `result/model` in it, and the stage's record.
        data, encoder: result of `prepare`, and its tokenizer, template and limits.
    """

    result: Path
    model: Path
    record: Mapping[str, Any]
    data: Path
    encoder: Encoder

    @classmethod
    def load(cls, result: Path, data: Path | None) -> ExportedModel:
        """Reads what the stage left, after its digests are checked."""
        folder = model_folder(result)
        if not (folder / "config.json").is_file():
            asked = "the result names a model that is asked, and has none of its own"
            raise DataError(
                asked if (result / "zero_shot.json").is_file() else "no trained model in this folder",
                file=str(result),
                remedy="Give the result of a stage reward_model, policy or sft: a folder that holds model/",
            )
        check_result(folder.parent)
        read, record = upstream("data", data, folder), read_object(folder.parent.parent / RECORD)
        if record.get("stage") not in _WRITERS:
            problem = f"it is a result of the stage '{record.get('stage')}'"
            raise RecipeError(f"{result}: {problem}; models of {', '.join(_WRITERS)} can be exported")
        return cls(result, folder, record, read, load_encoder(read, folder))


def export(result: Path, out: Path, data: Path | None = None) -> None:
    """Writes a trained model as transformers loads it.

    Args:
        result: of a stage `reward_model`, `policy` or `sft`.
        out: a new or empty folder.
        data: result of `prepare`; else the one that the record names.

    Raises:
        DataError: nothing to export, data that is not where the record says, or a folder that has files.
        RecipeError: a model that transformers has no form of, with the reason.
        NumericsError: scores that differ when read back.
    """
    prepare_process()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError("it exists and is not an empty folder", file=str(out), remedy="Name another folder")
    found = ExportedModel.load(result, data)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as place:
        made = Path(place) / "model"
        made.mkdir()
        _write_card(found, made, out.name, _WRITERS[str(found.record["stage"])](found, made))
        if out.exists():
            out.rmdir()
        shutil.move(made, out)


def _reward_model(found: ExportedModel, made: Path) -> str:
    """Writes a sequence classifier; returns what was checked."""
    trained = ScalarModel.training_settings(found.model)
    check_one_read(str(trained["segmenter"].get("kind")), build_aggregation(trained["aggregation"]), str(found.model))
    scorer = TrainedScorer.load(found.model, data=found.data)
    classifier = as_classifier(scorer.trained.model, scorer.trained.head, found.encoder.pad_id, str(found.model))
    save_model(classifier, made)
    template = hub_template(found.encoder.template, found.encoder.tokenizer)
    tokenizer = _write_tokenizer(found, made, template, padding="right")
    rows, texts = _responses(found)
    expected, scores = scorer(rows, texts), _scores(made, tokenizer, rows, texts)
    differences = [abs(one - other) for one, other in zip(expected, scores, strict=True)]
    worst = max(range(len(rows)), key=differences.__getitem__)
    if not differences[worst] <= TOLERANCE * max(1.0, *map(abs, expected)):
        raise NumericsError(
            f"{found.model}: transformers scores the response {texts[worst][:60]!r} {scores[worst]:.6f}, this project "
            f"{expected[worst]:.6f}; the chat template '{found.encoder.template.name}' written in Jinja, or the "
            "architecture, reads other tokens. Nothing was written"
        )
    return f"{len(rows)} responses of the validation data are scored as by the training code, to {TOLERANCE:g}"


def _responses(found: ExportedModel) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns a few rows with their responses, of lengths within the limits."""
    file = next((found.data / name for name in PAIRS if (found.data / name).is_file()), None)
    if file is None:
        problem = f"the data has no pairs ({' or '.join(PAIRS)}), by which an export is checked"
        raise DataError(problem, file=str(found.data), remedy="Name the data that the model was trained on by --data")
    counts, whole = found.encoder.counts, []
    for row in read_jsonl(file):
        for side in ("chosen", "rejected"):
            before = counts.prompts_cut + counts.responses_cut
            found.encoder.sequence(row, row[side])
            if counts.prompts_cut + counts.responses_cut == before:
                whole.append((dict(row), row[side]))
            if len(whole) == PROBES:
                break
    if not whole:
        raise DataError("no pair is within the data's limits of length", file=str(file), remedy="Raise the limits")
    rows, texts = zip(*whole[:PROBES], strict=True)
    return [*rows], [*texts]


@torch.no_grad()
def _scores(
    folder: Path, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]], texts: Sequence[str]
) -> list[float]:
    """Returns scores by transformers alone, in one batch."""
    classifier: Any = load_classifier(folder).to(device())  # type: ignore[arg-type]
    dialogues = [
        [*prompt_messages(row), {"role": "assistant", "content": text}] for row, text in zip(rows, texts, strict=True)
    ]
    batch: Any = tokenizer.apply_chat_template(dialogues, padding=True, return_dict=True, return_tensors="pt")
    given = {name: batch[name].to(device()) for name in ("input_ids", "attention_mask")}
    scores: list[float] = classifier(**given).logits[:, 0].tolist()
    return scores


def _policy(found: ExportedModel, made: Path) -> str:
    """Writes a language model; returns what was checked."""
    model, encoder = load_language_model(found.model), found.encoder
    model.config.__dict__.pop("attn_implementation", None)
    if model.generation_config is not None:
        model.generation_config.eos_token_id = encoder.eos_id
        model.generation_config.pad_token_id = encoder.pad_id
    save_model(model, made)
    own_template = isinstance(encoder.template, TokenizerTemplate)
    template = encoder.tokenizer.chat_template if own_template else hub_template(encoder.template, encoder.tokenizer)
    tokenizer = _write_tokenizer(found, made, template, padding="left")
    rows = read_jsonl(found.data / "prompts.jsonl")[:PROBES]
    for row in rows:
        ids = tokenizer.apply_chat_template(prompt_messages(row), add_generation_prompt=True, return_dict=False)
        own = encoder.template.prompt_ids(encoder.tokenizer, prompt_messages(row))
        if list(ids) != own:
            raise RecipeError(
                f"{found.model}: the chat template '{encoder.template.name}' written in Jinja gives other tokens than "
                f"the policy was trained on, of the prompt {row['prompt'][:60]!r}. Nothing was written"
            )
    return f"{len(rows)} prompts of the training data give the tokens that the policy was trained on"


def _write_tokenizer(found: ExportedModel, made: Path, template: Any, *, padding: str) -> PreTrainedTokenizerBase:
    """Writes the tokenizer with chat template, side of padding and length limit; returns it."""
    tokenizer = load_tokenizer(found.model)
    tokenizer.chat_template = template
    tokenizer.padding_side = padding
    tokenizer.model_max_length = found.encoder.limits.total
    tokenizer.save_pretrained(made)
    return tokenizer


_WRITERS: dict[str, Callable[[ExportedModel, Path], str]] = {
    "reward_model": _reward_model,
    "policy": _policy,
    "sft": _policy,
}


def _write_card(found: ExportedModel, made: Path, name: str, checked: str) -> None:
    """Writes README.md into the folder of an exported model: recipe, data, metrics, code, and how it is loaded."""
    record, settings, reward = found.record, _settings(found.record), found.record["stage"] == "reward_model"
    tags = [*(["reward-model"] if reward else []), "rlhf", "rewardsmith"]
    task = "text-classification" if reward else "text-generation"
    seq2seq = read_json(made / "config.json").get("is_encoder_decoder")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["yaml"] = lambda values: yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
    card = environment.get_template("model_card.md.j2").render(
        header=ModelCardData(library_name="transformers", pipeline_tag=task, tags=tags).to_yaml(),
        title=next((str(one["title"]) for one in settings.values() if "title" in one), name),
        name=name,
        stage=record["stage"],
        kind="AutoModelForSeq2SeqLM" if seq2seq else "AutoModelForCausalLM",
        settings=settings,
        data={key: value for key, value in read_json(found.data / "data.json").items() if key in FACTS},
        metrics=read_json(found.model.parent / "metrics.json"),
        code={key: record[key] for key in ("commit", "dirty", "versions", "result_digest", "inputs") if key in record},
        checked=checked,
    )
    (made / "README.md").write_text(card + "\n", encoding="utf-8")


def _settings(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the settings that a stage read by their address, without those that have changed since."""
    found: dict[str, dict[str, Any]] = {}
    for name, recorded in record["inputs"].items():
        if Address(name).file.suffix == ".yaml":
            with suppress(RewardsmithError, OSError):  # a page or entry that is no longer there
                present = digest(Path(name)) if Address(name).key is None else settings_digest(Address(name))
                found |= {name: dict(read_settings(name))} if present == recorded else {}
    return found
