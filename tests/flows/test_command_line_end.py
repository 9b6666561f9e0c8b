"""Calls of the command line: what they print and return."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from prefect.states import Completed, Failed

from flows import __main__ as module
from flows.paper import run_paper
from flows.scheduler import RunFailed
from rlhf_core.errors import RecipeError


@pytest.fixture(autouse=True)
def unmarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "mark", lambda _: {})
    monkeypatch.setattr("flows.scheduler.ENDED_WELL", [])  # of other flows of this process
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)


def call(monkeypatch: pytest.MonkeyPatch, name: str, function: Any) -> int:
    place, _, attribute = module.CALLS[name].partition(":")
    monkeypatch.setattr(f"{place}.{attribute}", function)
    return module.main([name, '{"name": "unknown"}'])


def interrupt(**_: Any) -> NoReturn:
    raise KeyboardInterrupt


def ended_in(state: Any) -> Any:
    """A flow of which only the final state is known, as a server gives it."""
    return lambda **_: state.result()


@pytest.mark.parametrize(
    ("function", "status", "out", "err"),
    [
        (ended_in(Completed(data="2 ran")), 0, "2 ran", ""),
        # the first request to set the state has no answer in time, and the second one is refused
        (ended_in(Completed(message="2 ran")), 0, "the run ended well; its stages are listed above", ""),
        (ended_in(Failed(data=RunFailed("1 failed. sft: no disk"))), 1, "", "error: 1 failed. sft: no disk"),
        (lambda **_: None, 0, "", ""),
        (interrupt, 128 + signal.SIGINT, "", "interrupted; run the same command again to continue"),
    ],
)
def test_a_call_says_how_it_ended(
    function: Any,
    status: int,
    out: str,
    err: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, "paper", function) == status
    said = capsys.readouterr()
    assert said.out.strip() == out
    assert said.err.startswith(err)
    assert bool(said.err) == bool(err)


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        (None, 0, "7 ran"),
        (KeyError("a fault"), 1, "KeyError: 'a fault'"),
        (KeyError("a fault"), 1, "error: the run did not end; run the same command again"),
        (KeyboardInterrupt(), 130, "interrupted; run the same command again"),
        (SystemExit(143), 143, "interrupted; run the same command again"),
        (RunFailed("1 failed. sft: no disk"), 1, "error: 1 failed. sft: no disk"),
        (RecipeError("unknown row"), 2, "error: unknown row"),
    ],
)
def test_a_call_whose_server_has_gone_ends_as_its_stages_ended(
    failure: BaseException | None,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = list[str]()
    monkeypatch.setattr("flows.scheduler.ENDED_WELL", ended)

    def flow(**_: Any) -> NoReturn:
        try:
            if failure is not None:
                raise failure
            ended.append("7 ran")
        finally:
            raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(module.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as exit_:
        call(monkeypatch, "paper", flow)
    assert exit_.value.code == status
    written = "".join(capsys.readouterr())
    assert ("Traceback" in written) == isinstance(failure, KeyError)
    assert said in written
    assert "the Prefect server has gone (connection refused)" in written


def test_a_server_that_is_slow_does_not_cut_the_process_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flow(**_: Any) -> NoReturn:
        try:
            raise RunFailed("1 failed. sft: no disk")
        finally:
            raise httpx.ReadTimeout("")

    monkeypatch.setattr(module.os, "_exit", lambda _: pytest.fail("what runs at exit is skipped"))
    assert call(monkeypatch, "paper", flow) == 1
    assert "the Prefect server did not answer (ReadTimeout)" in capsys.readouterr().err


def test_the_suite_takes_no_rows() -> None:
    with pytest.raises(RecipeError, match="the suite takes no rows"):
        run_paper("suite", rows=["bandit"])
