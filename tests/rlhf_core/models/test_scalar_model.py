"""Scalar models: where the head is read, padding, and what survives saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import batch_of, random_rows, tiny_scalar_model

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.loading import build_language_model, load_language_model
from rlhf_core.models.reward_model import ScalarModel

PROMPTS = random_rows(1, [3, 5, 1], ended=False)
ROWS = random_rows(2, [6, 1, 3])


def read(model: ScalarModel, **options: Any) -> torch.Tensor:
    batch = batch_of(PROMPTS, ROWS)
    with torch.no_grad():
        return model(batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask, **options)


@pytest.mark.parametrize("shift", [0, 1])
def test_the_head_is_read_at_the_token_or_at_the_state_before_it(shift: int) -> None:
    model = tiny_scalar_model(heads=("reward", "value"), bias=True)
    values = read(model, head="value", shift=shift)
    head = model.heads["value"]
    for i, (prompt, row) in enumerate(zip(PROMPTS, ROWS, strict=True)):
        with torch.no_grad():
            hidden = model.backbone(input_ids=torch.tensor([[*prompt, *row]])).last_hidden_state[0]
            naive = (hidden @ head.weight[0] + head.bias)[len(prompt) - shift :][: len(row)]  # type: ignore[operator,index]
        torch.testing.assert_close(values[i, : len(row)], naive, atol=1e-5, rtol=1e-5)
        assert values[i, len(row) :].abs().sum() == 0


@pytest.mark.parametrize("bias", [False, True])
def test_saving_and_loading_keeps_every_value(tmp_path: Path, bias: bool) -> None:
    model = tiny_scalar_model(3, ("reward", "length"), bias=bias)
    if bias:
        torch.nn.init.constant_(model.heads["reward"].bias, 0.7)  # type: ignore[arg-type]
    model.save(tmp_path / "m", {"segmenter": {"kind": "entropy", "cutoff": 1.75}})
    loaded, config = ScalarModel.load(tmp_path / "m")
    assert config["segmenter"] == {"kind": "entropy", "cutoff": 1.75}
    assert list(loaded.heads) == ["reward", "length"]
    for head in ("reward", "length"):
        assert torch.equal(read(loaded, head=head), read(model, head=head))
    for path in (tmp_path / "m").iterdir():
        assert path.suffix in (".json", ".safetensors")
    assert ("reward.bias" in load_file(tmp_path / "m" / "heads.safetensors")) == bias


def test_what_is_no_reward_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a saved reward model"):
        ScalarModel.load(tmp_path)
    with pytest.raises(DataError, match="cannot be loaded"):
        load_language_model(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "heads.safetensors", "config.json", "reward_model.json"])
def test_a_damaged_model_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    tiny_scalar_model(3, ("reward",)).save(tmp_path, {})
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataError, match=f"{tmp_path}: the reward model cannot be loaded .*Re-run its stage"):
        ScalarModel.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama"}, r"model_type is 'lama'; did you mean 'llama'\?"),
        ({"model_type": None}, r"model_type is 'None'; known: gemma"),
        ({"hiden_size": 16}, r"llama has no field 'hiden_size'; did you mean 'hidden_size'\?"),
        ({"hidden_size": 15}, "hidden_size is 15, which is not a multiple of its 2 heads"),
        ({"rms_norm_eps": "small"}, "architecture: .*'rms_norm_eps' expected float, got str"),
    ],
)
def test_an_architecture_that_is_none_is_refused(change: dict[str, Any], message: str) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokenizer: Any = MagicMock(bos_token_id=None, eos_token_id=1, pad_token_id=0)
    tokenizer.__len__.return_value = 8
    with pytest.raises(RecipeError, match=message):
        build_language_model({"model_type": "llama", **sizes, **change}, tokenizer, 0)
