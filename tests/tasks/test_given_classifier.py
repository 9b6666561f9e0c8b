"""Hugging Face classifiers as given reward models: the rewards of transformers at every stage, and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from rlhf_core.data.dialogue import prompt_messages
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.policy import pad_rows
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.rollout import RolloutBatch
from rlhf_core.segmentation.segmenters import build_segmenter
from tasks.commands.export import export
from tasks.evaluating.aspects import holistic_values
from tasks.graph.check import check_rows
from tasks.running.artifacts import read_json, read_jsonl
from tasks.running.loading import load_encoder
from tasks.scoring.classifiers import RolloutTexts, ScalarScorer
from tests.small_repository import reward_row, set_entry
from tests.tasks.golden_runs import SETTINGS, SharedRuns

ROOT = Path(__file__).resolve().parents[2]
#: A template as the hub has it: it strips contents, and writes a line end behind the end token.
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WHOLE = {"readout": {"segmenter": {"kind": "bandit"}, "read": "aggregate"}, "normaliser": "sequence"}
ROW = {**SETTINGS["row/segment-par"], **WHOLE, "credit": "last_token", "shaping": {"kind": "par", "references": 2}}


@pytest.fixture(scope="module")
def classifier(golden: SharedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with random weights and a chat template of its own."""
    folder, source = tmp_path_factory.mktemp("hub") / "scalar", golden.result("sft") / "model"
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = CHAT
    config = AutoConfig.from_pretrained(source, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(golden: SharedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of this project, which is read at the response's end."""
    folder = tmp_path_factory.mktemp("trained")
    spec = {**SETTINGS["reward_model/segment"], "segmenter": {"kind": "bandit"}}
    return golden.run("model-segment", spec=spec, out=folder / "0")


@pytest.fixture(scope="module")
def given(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same one after its export."""
    out = tmp_path_factory.mktemp("given") / "model"
    export(trained, out)
    return out


def pairs(golden: SharedRuns) -> tuple[list[dict[str, Any]], list[str]]:
    rows = read_jsonl(golden.result("dialogue") / "preference.validation.jsonl")
    return [row for row in rows for _ in range(2)], [row[side] for row in rows for side in ("chosen", "rejected")]


@pytest.mark.parametrize("batch", [1, 7])
def test_a_reward_is_what_transformers_computes_of_the_conversation(
    golden: SharedRuns, classifier: Path, batch: int
) -> None:
    rows, texts = pairs(golden)
    model: Any = AutoModelForSequenceClassification.from_pretrained(classifier)
    tokenizer: Any = AutoTokenizer.from_pretrained(classifier)
    expected = []
    for row, text in zip(rows, texts, strict=True):
        dialogue = [*prompt_messages(row), {"role": "assistant", "content": text}]
        ids = tokenizer.apply_chat_template(dialogue, return_dict=True, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(float(model(input_ids=ids).logits))
    assert max(expected) - min(expected) > 1e-2
    assert ScalarScorer.load(classifier)(rows, texts, batch) == pytest.approx(expected, abs=1e-5)


def test_a_model_that_went_out_and_came_back_gives_rollouts_the_same_rewards(
    golden: SharedRuns, trained: Path, given: Path
) -> None:
    rows, texts = pairs(golden)
    encoder = load_encoder(golden.result("dialogue"), trained / "model")
    sequences = [encoder.sequence(row, text) for row, text in zip(rows, texts, strict=True)]
    cut = [replace(s, response=s.response[:-1]) if i % 3 == 0 else s for i, s in enumerate(sequences)]
    prompt_ids, prompt_mask = pad_rows([s.prompt for s in cut], encoder.pad_id, "left")
    rollouts = RolloutBatch(
        prompt_ids, prompt_mask, encoder.responses(cut), [row["prompt"] for row in rows], texts, rows,
        torch.arange(len(rows)),
    )  # fmt: skip
    assert 0 < int(rollouts.responses.ended.sum()) < len(rows)
    own = RewardModelScorer(ScalarModel.load(trained / "model")[0], build_segmenter({"kind": "bandit"}), "aggregate")
    found = RolloutTexts(ScalarScorer.load(given), encoder.tokenizer, microbatch=5).score(rollouts)
    torch.testing.assert_close(found.values, own.score(rollouts).values, atol=1e-5, rtol=0)  # type: ignore[union-attr]


def test_a_holistic_reward_reads_answers_that_a_limit_cut_without_their_end(
    golden: SharedRuns, trained: Path, given: Path
) -> None:
    rows, texts = pairs(golden)
    encoder = load_encoder(golden.result("dialogue"), trained / "model")
    drawn = [(text, 9 if i % 3 == 0 else 4) for i, text in enumerate(texts)]
    own, found = (holistic_values(model, encoder, rows, drawn, 9) for model in (trained, given))
    assert found == pytest.approx(own, abs=1e-5)
    assert own != pytest.approx(holistic_values(trained, encoder, rows, drawn, 10), abs=1e-3)


@pytest.fixture(scope="module")
def stages(
    golden: SharedRuns, trained: Path, given: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Path]]:
    """Results of the stages that read a reward model, of the trained and of the given one."""
    found: dict[str, dict[str, Path]] = {}
    for name, model in (("trained", trained), ("given", given)):
        folder = tmp_path_factory.mktemp(name)
        scale = {**SETTINGS["policy/ppo"], "checkpoint_proxy": True}
        made = {
            kind: golden.run(run, reward_model=model, out=folder / kind)
            for kind, run in (("normaliser", "fit-segment"), ("references", "references-segment"))
        }
        given_settings = {"row": ROW, "scale": scale}
        made["policy"] = golden.run("segment-par", reward_model=model, **made, **given_settings, out=folder / "policy")
        found[name] = made
    return found


def test_every_stage_reads_a_given_classifier_as_the_trained_model(stages: dict[str, dict[str, Path]]) -> None:
    own, found = (read_json(stages[name]["normaliser"] / "normaliser.json") for name in ("trained", "given"))
    for kind in ("global", "last", "sequence"):
        assert found[kind] == pytest.approx(own[kind], abs=1e-5)
    own, found = (read_json(stages[name]["references"] / "metrics.json") for name in ("trained", "given"))
    assert found == pytest.approx(own, abs=1e-2), "a token without text is not read"
    assert own["reward_std"] > 0
    own, found = (read_json(stages[name]["policy"] / "metrics.json") for name in ("trained", "given"))
    assert set(found) == set(own) >= {"proxy_reward", "preference_score"}


def edit(name: str, **values: Any) -> Callable[[Path], None]:
    """A change of fields of a JSON file; None takes one away."""

    def change(folder: Path) -> None:
        found = json.loads((folder / name).read_text()) | values
        (folder / name).write_text(json.dumps({key: value for key, value in found.items() if value is not None}))

    return change


def no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    edit("tokenizer_config.json", chat_template=None)(folder)


def no_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def no_head(folder: Path) -> None:
    weights = {k: v for k, v in load_file(folder / "model.safetensors").items() if k != "score.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


#: Faults that show when the model is loaded, and those that a plan sees.
LOADED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no head": (no_head, "the weights of score.weight are missing"),
    "no pad token": (edit("tokenizer_config.json", pad_token=None), "field 'pad_token'"),
}
TWO = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "two outputs": (edit("config.json", **TWO), "field 'num_labels': the classifier has 2 outputs"),
    "another class": (edit("config.json", architectures=["LlamaForCausalLM"]), "is a LlamaForCausalLM, which has no"),
    "no template": (no_template, "field 'chat_template': the tokenizer has no chat template"),
    "no tokenizer": (no_tokenizer, "the model folder has no tokenizer"),
    "pickled": (no_weights, r"the model folder has no weights \(\*.safetensors\)"),
    "not JSON": (no_json, "not valid JSON"),
}


@pytest.mark.parametrize("name", [*REFUSED, *LOADED])
def test_a_folder_that_is_no_reward_model_is_refused_before_anything_runs(
    classifier: Path, tmp_path: Path, name: str
) -> None:
    change, message = {**REFUSED, **LOADED}[name]
    shutil.copytree(classifier, folder := tmp_path / "wrong")
    change(folder)
    with pytest.raises(DataError, match=message):
        ScalarScorer.load(folder)
    if name in REFUSED:
        assert message.partition(": ")[2] in "\n".join(planned(tmp_path / "root", folder))


def planned(root: Path, folder: Path, **row: Any) -> list[str]:
    """Problems of a row with a given reward model."""
    shutil.copytree(ROOT / "params", root / "params")
    shutil.copy(ROOT / "params.yaml", root)
    entry = {"title": "Given", "backbone": "phi3-mini", "given": str(folder)}
    set_entry(root / "params/segment/reward_models_given.yaml", "given", entry)
    values = {**reward_row("given"), **WHOLE, "credit": "last_token", **row}
    set_entry(root / "params/segment/rows_given.yaml", "given", values)
    return [str(problem) for problem in check_rows(root, "segment", ["given"], "testbed")]


def test_a_row_on_a_classifier_is_accepted(classifier: Path, tmp_path: Path) -> None:
    assert planned(tmp_path, classifier, shaping={"kind": "par"}) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"readout": {"segmenter": {"kind": "bandit"}}, "normaliser": "none", "credit": "segment_end"},
            "readout.read is 'value', but reward model 'given' is a Hugging Face classifier",
        ),
        (
            {"readout": {"segmenter": {"kind": "token"}, "read": "aggregate"}},
            "readout.segmenter.kind is 'token', but reward model 'given' is a Hugging Face classifier",
        ),
        (
            {"readout": {"segmenter": {"kind": "bandit"}, "read": "aggregate", "head": "quality"}},
            "readout.head is 'quality', but reward model 'given' is a Hugging Face classifier",
        ),
        (
            {"optimiser": {"kind": "ppo", "critic": "reward_model"}},
            "optimiser.critic is 'reward_model', which needs values at the policy's tokens, but reward model 'given'",
        ),
    ],
)
def test_what_needs_values_at_tokens_is_refused(
    classifier: Path, tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    assert message in "\n".join(planned(tmp_path, classifier, **row))


def test_a_policy_is_no_reward_model(golden: SharedRuns, tmp_path: Path) -> None:
    found = "\n".join(planned(tmp_path, golden.result("segment")))
    assert "no reward model in this folder" in found
    found = "\n".join(planned(tmp_path / "again", golden.result("model-segment") / "model"))
    assert "Name the folder that holds model/" in found


def test_another_read_is_refused_by_the_stage(golden: SharedRuns, given: Path, tmp_path: Path) -> None:
    row = SETTINGS["row/segment"] | {"normaliser": "none"}
    with pytest.raises(RecipeError, match="use 'aggregate'"):
        golden.run("segment", reward_model=given, row=row, out=tmp_path / "out")
