"""Saved models: what transformers saves; wrong values of a configuration are refused before memory is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_encoder_decoder, tiny_policy

from rlhf_core.errors import DataError
from rlhf_core.models.loading import load_language_model, save_model


def set_field(folder: Path, name: str, value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope_parameters", 5), ("rope_parameters", {"rope_theta": "x", "rope_type": "default"}), ("hidden_size", "16"),
        ("intermediate_size", 1.5), ("eos_token_id", {}), ("model_type", None), ("dtype", "x"),
        ("num_attention_heads", 0), ("hidden_act", "x"), ("layer_types", ["x"]),
    ],
)  # fmt: skip
def test_a_configuration_with_a_wrong_value_is_refused_with_its_folder(
    tmp_path: Path, name: str, value: object
) -> None:
    save_model(tiny_policy().model, tmp_path)
    set_field(tmp_path, name, value)
    with pytest.raises(DataError, match=rf"{tmp_path}.*\. Give "):
        load_language_model(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\0", '{"model_type": "llama"', "[" * 10_000])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_a_cut_file_is_refused_or_not_needed(tmp_path: Path, file: str, text: str) -> None:
    save_model(tiny_policy().model, tmp_path)
    before = load_language_model(tmp_path).state_dict()
    (tmp_path / file).write_text(text)
    try:
        after = load_language_model(tmp_path).state_dict()
    except DataError as error:
        assert str(tmp_path) in str(error)  # noqa: PT017 (either is right)
    else:
        assert file == "generation_config.json"
        assert all(after[name].equal(value) for name, value in before.items())


def test_no_bar_is_shown_while_a_model_is_saved_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tiny_policy().model, tmp_path)
    load_language_model(tmp_path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("make", [tiny_policy, tiny_encoder_decoder])
def test_a_saved_model_is_what_transformers_saves(tmp_path: Path, make: Any) -> None:
    model = make().model
    save_model(model, tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs", safe_serialization=True)
    files = [{path.name: path.read_bytes() for path in (tmp_path / one).iterdir()} for one in ("ours", "theirs")]
    assert files[0] == files[1]
