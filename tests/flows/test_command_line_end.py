"""The end of a flow's command line: what it prints and returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prefect.states import Completed, Failed

from flows import paper as module
from flows.scheduler import RunFailed


def ended_in(state: Any) -> Any:
    """A flow of which only the final state is known, as a server gives it."""
    return lambda **_: state.result()


@pytest.fixture(autouse=True)
def unmarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "mark_processes_for_clean_up", lambda _: None)
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)


def test_a_run_that_ended_well_does_so_though_the_server_gives_its_state_without_the_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """So it does where the first request to set the state has no answer in time, and the second one is refused."""
    assert module.command_line(ended_in(Completed(data="2 ran")), "par", []) == 0
    assert module.command_line(ended_in(Completed(message="2 ran")), "par", []) == 0
    assert capsys.readouterr().out == "2 ran\nthe run ended well; its stages are listed above\n"


@pytest.mark.parametrize("paper", ["par", "suite", "study"])
def test_help_shows_the_papers_own_call(paper: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        module.command_line(lambda **_: "", paper, ["--help"])
    assert f"usage: python -m flows.paper {paper} [" in " ".join(capsys.readouterr().out.split())


def test_the_suite_takes_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        module.command_line(lambda **_: "", "suite", ["--rows", "bandit"])
    assert "the suite takes no rows" in capsys.readouterr().err


def test_a_run_that_failed_is_an_error_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    failed = ended_in(Failed(data=RunFailed("1 failed. sft: no disk")))
    assert module.command_line(failed, "par", []) == 1
    assert capsys.readouterr().err == "error: 1 failed. sft: no disk\n"
