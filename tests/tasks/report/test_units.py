"""The unit of every mean and error that a reader sees is a world."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SHOWN = [*(ROOT / "tasks" / "report").rglob("*.py"), *(ROOT / "tasks" / "report" / "templates").iterdir()]
SHOWN += [ROOT / "tasks" / "command_line.py", *(ROOT / "tasks" / "commands").glob("*_app.py")]
SHOWN += [ROOT / "docs" / "extending.md", ROOT / "docs" / "report.md"]


@pytest.mark.parametrize("file", SHOWN, ids=lambda file: file.name)
def test_no_caption_has_means_or_errors_over_seeds(file: Path) -> None:
    text = re.sub(r"[\"'\s]+f?\"?", " ", file.read_text(encoding="utf-8"))
    assert not re.findall(r"(?:means?|errors?|intervals?)[^.;]{0,40} (?:over|of) seeds", text)
