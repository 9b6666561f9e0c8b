"""Ctrl-C while a study or its tuning runs: one line, no traceback."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

import pytest

from flows import study, tune


def interrupt(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("module", "name"), [(study, "study"), (tune, "tune_study")])
def test_ctrl_c_says_that_the_same_command_continues(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, name, interrupt)
    monkeypatch.setattr(module, "mark_processes_for_clean_up", lambda root: None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert module.main(["credit"]) == 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)
    said = "interrupted; run the same command again to continue: a stage with a checkpoint goes on from there\n"
    assert capsys.readouterr().err == said
