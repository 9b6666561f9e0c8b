"""Saving a model: what transformers writes, without what it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_core.models.loading import save_model
from tests.rlhf_core.tiny_models import tiny_encoder_decoder, tiny_policy

SAVE = """
import sys
from pathlib import Path
from rlhf_core.models.loading import save_model
from tests.rlhf_core.tiny_models import tiny_policy
save_model(tiny_policy().model, Path(sys.argv[1]))
print(sorted({"deepspeed", "mlflow"} & set(sys.modules)))
"""


@pytest.mark.parametrize("make", [tiny_policy, tiny_encoder_decoder])
def test_it_is_what_transformers_saves(tmp_path: Path, make: object) -> None:
    model = make().model  # type: ignore[operator]
    save_model(model, tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs", safe_serialization=True)
    for path in (tmp_path / "theirs").iterdir():
        assert path.read_bytes() == (tmp_path / "ours" / path.name).read_bytes()
    assert len(list((tmp_path / "ours").iterdir())) == len(list((tmp_path / "theirs").iterdir()))


def test_neither_deepspeed_nor_mlflow_is_imported(tmp_path: Path) -> None:
    made = subprocess.run([sys.executable, "-c", SAVE, str(tmp_path)], capture_output=True, text=True, check=False)
    assert made.stdout.strip() == "[]", made.stderr
