"""A paper's or the suite's flow with nothing to run: what it calls after the stages is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import paper, suite
from flows.scheduler import RunSummary

FLOWS = ("paper", "suite")


def run(
    monkeypatch: pytest.MonkeyPatch, made: str, root: Path, follow_ups: Callable[..., list[str]], **choice: Any
) -> None:
    """Runs Segment's flow, or the suite's of Segment alone, at the testbed scale; `follow_ups` gets its calls."""
    module: Any = {"paper": paper, "suite": suite}[made]
    monkeypatch.setattr(module, "run_stale", lambda *_, **__: RunSummary())
    monkeypatch.setattr(module, "follow_ups", follow_ups)
    monkeypatch.setattr(module, "get_run_logger", lambda: SimpleNamespace(info=lambda *_: None))
    monkeypatch.setattr(module.plan, "pipeline_files", lambda *_, **__: [])
    monkeypatch.setattr(module.plan, "suite_files", lambda *_, **__: [])
    monkeypatch.setattr(module.plan, "suite_papers", lambda *_, **__: ["segment"])
    choice |= {"scale": "testbed", "report": True, "sync": True}
    if made == "paper":
        paper.run_paper("segment", rows=(), root=str(root), **choice)
    else:
        suite.run_suite(root, **choice)
