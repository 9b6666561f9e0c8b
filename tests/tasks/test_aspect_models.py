"""Long-form questions and translation from data to aspect models, on a few dozen rows and a model of 16 dimensions."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.aspects import build_aspect, checked_scores
from rlhf_core.errors import DataError, RecipeError
from tasks.running.artifacts import digest, read_jsonl, write_jsonl
from tests.tasks.tiny_pipeline import SETTINGS, SUPERVISED, changed

COMMON = {"template": "plain", "world_seed": 0, "seed": 0, "annotator": {"temperature": 0.75}}
ROWS = {
    "sft": 40, "sft_validation": 8, "prompts": 12, "preference_train": 24, "preference_validation": 8,
    "preference_ood": 6, "benchmark": 6,
}  # fmt: skip
DATA: dict[str, dict[str, Any]] = {
    "longform": {"source": "testbed-longform", **COMMON, "limits": {"prompt": 176, "total": 288}}
    | {"rows": {**ROWS, "labelled_train": 32, "labelled_validation": 12}},
    "translation": {"source": "testbed-translation", **COMMON, "limits": {"prompt": 64, "total": 128}} | {"rows": ROWS},
}
T5 = {
    "model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2,
    "dropout_rate": 0.0, "tie_word_embeddings": False,
}  # fmt: skip
BACKBONES = {
    "qa": ("longform", SETTINGS["backbone"]["architecture"]),
    "mt": ("translation", SETTINGS["backbone"]["architecture"]),
    "t5": ("translation", T5),
}
ASPECTS = {"relevance": "span", "factuality": "sentence", "completeness": "sequence"}
RELEVANCE = {"title": "Relevance", "backbone": "qa", "aspect": "relevance", "density": "span"}


def run(stage: str, **arguments: Any) -> Path:
    """Runs a stage's entry point in this process; returns its result directory."""
    line = [part for key, value in arguments.items() for part in (f"--{key}", str(value))]
    import_module(f"tasks.{stage}").main(line)
    return Path(arguments["out"]) / "result"


def settings(folder: Path, name: str, values: dict[str, Any]) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def metrics(result: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((result / "metrics.json").read_text())
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Results by name: data sets, SFT models, aspect models; `root` holds the settings."""
    root = tmp_path_factory.mktemp("aspects")
    results = {"root": root}
    for name, spec in DATA.items():
        results[name] = run("prepare", spec=settings(root, name, spec), out=root / name)
        tokenizer = settings(root, "tokenizer", {"vocabulary": 400, "full_byte_alphabet": False})
        results[f"{name}-tokenizer"] = run("tokenizer", spec=tokenizer, data=results[name], out=root / f"{name}-tok")
    evaluation = settings(
        root, "evaluation", {"max_new_tokens": 12, "task_tokens": 1, "temperature": 0, "judge": {"kind": "gold"}}
    )
    for name, (data, architecture) in BACKBONES.items():
        spec = {
            "data": data,
            "tokenizer": data,
            "evaluation": data,
            "architecture": architecture,
            "training": SUPERVISED,
        }
        results[name] = run(
            "sft", spec=settings(root, name, spec), evaluation=evaluation, data=results[data],
            tokenizer=results[f"{data}-tokenizer"], seed=0, out=root / name,
        )  # fmt: skip
    scale = settings(root, "scale", SUPERVISED)
    for aspect, density in ASPECTS.items():
        spec = settings(root, aspect, {**RELEVANCE, "aspect": aspect, "density": density})
        results[aspect] = run(
            "aspect_model",
            spec=spec,
            scale=scale,
            data=results["longform"],
            sft=results["qa"],
            seed=0,
            out=root / aspect,
        )
    return results


@pytest.mark.parametrize("name", DATA)
def test_the_data_stage_writes_every_set_that_later_stages_read(made: dict[str, Path], name: str) -> None:
    facts = json.loads((made[name] / "data.json").read_text())
    counted = {key: len(read_jsonl(made[name] / f"{key}.jsonl")) for key in facts["rows"]}
    assert counted == facts["rows"]
    assert {"sft", "sft.validation", "prompts", "preference.ood", "benchmarks/alpaca", "examples"} <= set(counted)
    assert counted["preference.train"] == ROWS["preference_train"]
    kept = {"longform": {"question", "passages"}, "translation": {"source_text", "target_text"}}[name]
    for row in read_jsonl(made[name] / "prompts.jsonl"):
        assert {"id", "prompt", "meta", "source", *kept} <= set(row)


def test_an_encoder_decoder_is_fine_tuned_and_judged_like_a_decoder(made: dict[str, Path]) -> None:
    for name in ("mt", "t5"):
        found = metrics(made[name])
        assert 0 <= found["bleu"] <= 100
        assert {"true_reward", "alpaca_wr", "validation_nll"} <= set(found)
        losses = [row["loss"] for row in read_jsonl(made[name] / "history.jsonl")]
        assert all(map(math.isfinite, losses))
    assert json.loads((made["t5"] / "model" / "config.json").read_text())["is_encoder_decoder"]
    assert "bleu" not in metrics(made["qa"])


@pytest.mark.parametrize(("name", "data"), [("qa", "longform"), ("t5", "translation")])
def test_a_holistic_reward_model_is_an_ordinary_one_on_the_pairs(
    made: dict[str, Path], tmp_path: Path, name: str, data: str
) -> None:
    spec = {
        "title": "Holistic", "backbone": name, "segmenter": {"kind": "bandit"}, "aggregation": "mean",
        "loss": "bradley_terry",
    }  # fmt: skip
    found = metrics(
        run(
            "reward_model",
            spec=settings(tmp_path, "holistic", spec),
            scale=made["root"] / "scale.yaml",
            data=made[data],
            sft=made[name],
            seed=0,
            out=tmp_path / "out",
        )
    )
    assert 0 <= found["accuracy"] <= 1
    assert 0.5 < found["bayes_ceiling"] < 1
    assert {"fidelity_pearson", "boundary_f1"} <= set(found) or found["segments_per_response"] == 1


def test_aspect_models_report_what_the_paper_reports(made: dict[str, Path]) -> None:
    for aspect in ("relevance", "factuality"):
        found = metrics(made[aspect])
        assert all(0 <= found[name] <= 1 for name in ("accuracy", "f1", "f1_right", "f1_wrong", "share_right"))
        assert found["slices"] >= 12
    assert 0 <= metrics(made["completeness"])["accuracy"] <= 1
    assert metrics(made["completeness"])["pairs"] == 12


@pytest.mark.parametrize(("aspect", "density"), ASPECTS.items())
def test_a_trained_aspect_keeps_its_density_whatever_the_text(made: dict[str, Path], aspect: str, density: str) -> None:
    model = build_aspect({"kind": "trained", "folder": str(made[aspect] / "model"), "right": 0.3, "wrong": -0.3})
    assert (model.name, model.density.value) == (aspect, density)
    rows = read_jsonl(made["longform"] / "labelled.validation.jsonl")[:4]
    texts = [*(row["response"] for row in rows[:2]), "", "no mark, no capital"]
    scored = checked_scores(model, rows, texts)
    values = {value for one in scored for value in one.values}
    assert density == "sequence" or values <= {0.3, -0.3}
    again = checked_scores(model, rows[1:2], texts[1:2])
    assert again[0].values == pytest.approx(scored[1].values, abs=1e-5)


def test_the_same_seed_gives_the_same_model(made: dict[str, Path], tmp_path: Path) -> None:
    root = made["root"]
    again = run(
        "aspect_model", spec=root / "relevance.yaml", scale=root / "scale.yaml", data=made["longform"], sft=made["qa"],
        seed=0, out=tmp_path,
    )  # fmt: skip
    assert digest(again) == digest(made["relevance"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"density": "token"}, "density is .token.; known: span, sentence, sequence"),
        ({"error_weight": 0.0}, "error_weight is 0.0"),
        ({"aspect": "politeness"}, "no labels of slices for aspect 'politeness'.*factuality, relevance"),
    ],
)
def test_a_wrong_spec_is_refused_by_name(
    made: dict[str, Path], tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    spec = settings(tmp_path, "spec", {**RELEVANCE, **change})
    with pytest.raises((RecipeError, DataError), match=said):
        run(
            "aspect_model", spec=spec, scale=made["root"] / "scale.yaml", data=made["longform"], sft=made["qa"], seed=0,
            out=tmp_path / "out",
        )  # fmt: skip


def test_an_aspect_that_is_constant_is_refused(made: dict[str, Path], tmp_path: Path) -> None:
    for split in ("train", "validation"):
        rows = read_jsonl(made["longform"] / f"labelled.{split}.jsonl")
        for row in rows:
            row["labels"]["relevance"] = [[start, end, True] for start, end, _ in row["labels"]["relevance"]]
        write_jsonl(tmp_path / f"labelled.{split}.jsonl", rows)
    (tmp_path / "data.json").write_bytes((made["longform"] / "data.json").read_bytes())
    with pytest.raises(DataError, match="every slice is right in aspect 'relevance'"):
        run(
            "aspect_model", spec=made["root"] / "relevance.yaml", scale=made["root"] / "scale.yaml", data=tmp_path,
            sft=made["qa"], seed=0, out=tmp_path / "out",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        ("longform", "rows.labelled_train", None, "labelled_train"),
        ("translation", "rows.labelled_train", 3, "labelled_train"),
        ("translation", "annotator.temperature", 0, "temperature"),
    ],
)
def test_a_wrong_data_spec_is_refused_by_name(tmp_path: Path, name: str, path: str, value: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        run("prepare", spec=settings(tmp_path, "data", changed(DATA[name], path, value)), out=tmp_path / "out")
