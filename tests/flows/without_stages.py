"""A paper's or the suite's flow with nothing to run: what it calls after the stages is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import paper
from flows.scheduler import RunSummary
from tasks.dvc.pipelines import Request
from tasks.graph.names import SUITE

FLOWS = ("paper", "suite")


def run(
    monkeypatch: pytest.MonkeyPatch,
    made: str,
    root: Path,
    run_modules: Callable[..., list[str]],
    *,
    stages: Callable[[], None] = lambda: None,
    **choice: Any,
) -> None:
    """Runs Segment's flow, or the suite's of Segment alone, at the testbed scale; `run_modules` gets its calls, and
    `stages` is called in place of stages."""

    def run_stale(*_: Any, **__: Any) -> RunSummary:
        stages()
        return RunSummary()

    monkeypatch.setattr(paper, "run_stale", run_stale)
    monkeypatch.setattr(paper, "run_modules", run_modules)
    monkeypatch.setattr(paper, "get_run_logger", lambda: SimpleNamespace(info=lambda *_: None))
    monkeypatch.setattr(Request, "files", lambda *_: [])
    monkeypatch.setattr(Request, "papers", lambda *_: ["segment"])
    request = Request("segment" if made == "paper" else SUITE, report=True, sync=True, **choice)
    paper.run_request(root, request)
