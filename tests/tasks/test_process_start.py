"""A stage's process looks for garbage as usual once its imports are done, and not among them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAGE = """
import gc, sys
sys.argv[0] = "-m"
from tasks.running.stage import run_main
run_main(lambda _: print(gc.get_threshold()[0], gc.get_freeze_count() > 1000))
"""


def said(code: str) -> str:
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    return made.stdout.strip() or made.stderr


@pytest.fixture(scope="module")
def usual() -> str:
    """Python's own threshold."""
    return said("import gc; print(gc.get_threshold()[0])")


def test_they_are_as_usual_when_the_stage_begins(usual: str) -> None:
    assert said(STAGE) == f"{usual} True"
