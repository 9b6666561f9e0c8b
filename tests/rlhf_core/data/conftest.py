"""Small records, files and tokenizers for the data tests."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The machine may be shared: a slow example is no failure.
settings.register_profile("data", deadline=None, max_examples=60)
settings.load_profile("data")

TEXTS = [
    "Hello there, how are you today?",
    "The cat sat on the mat 12 times.",
    "Where is the library in 1999?",
] * 5


def pair(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A valid preference pair; a change to None removes the field."""
    row = {
        "id": f"pair-{number}",
        "prompt": f"Question {number}?",
        "chosen": "A good answer.",
        "rejected": "A bad answer.",
        "source": "made up",
    }
    return {key: value for key, value in (row | changes).items() if value is not None}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Writes rows as JSON Lines, compressed where the name says so; returns the path."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from rlhf_core.data.tokenizers import train_byte_level_bpe

    return train_byte_level_bpe(TEXTS, 300)


@pytest.fixture(scope="session")
def marked_tokenizer() -> Any:
    """Knows the markers of all three templates."""
    from rlhf_core.data.tokenizers import train_byte_level_bpe

    markers = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|begin_of_text|>"]
    markers += ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return train_byte_level_bpe(TEXTS, 320, markers)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; tests that need it are skipped where it is absent."""
    default = Path(__file__).parents[3] / ".." / "shared" / "data"
    folder = Path(os.environ.get("REWARDSMITH_DATA", default))
    if not folder.is_dir():
        pytest.skip("no real data directory")
    return folder
