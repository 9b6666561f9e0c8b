"""A stage's typed function is its command line: the graph's lines fit, and what is missing is named."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import pytest

from tasks.graph import STAGES, stage_templates
from tasks.stage import argument_parser, command_line


def test_arguments_reach_the_function_with_their_types() -> None:
    calls: list[tuple[Any, ...]] = []

    def stage(
        spec_path: Annotated[Path, "spec (YAML)"],
        reward_model: Path | None,
        seeds: tuple[int, ...],
        paper: str,
        out: Path,
        version: int | None = None,
    ) -> None:
        """Does something."""
        calls.append((spec_path, reward_model, seeds, paper, out, version))

    line = ["--spec", "a.yaml", "--seeds", "0", "1", "--paper", "segment", "--out", "x"]
    command_line(stage)(line)
    command_line(stage)([*line, "--reward-model", "m", "--stage-version", "3"])
    assert calls == [
        (Path("a.yaml"), None, (0, 1), "segment", Path("x"), None),
        (Path("a.yaml"), Path("m"), (0, 1), "segment", Path("x"), 3),
    ]
    shown = argument_parser(stage).format_help()
    assert "Does something." in shown
    assert "spec (YAML)" in shown


def test_a_missing_argument_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def stage(spec_path: Path, out: Path) -> None: ...

    with pytest.raises(SystemExit) as stopped:
        command_line(stage)(["--out", "x"])
    assert stopped.value.code == 2
    assert "--spec" in capsys.readouterr().err


@pytest.mark.parametrize("group", [*stage_templates("testbed"), "tables"])
def test_the_graphs_command_lines_fit_the_stages(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = ("tables", {"results": "r", "paper": "segment", "seeds": "0 1", "graph": "g"})
    stage, arguments = tables if group == "tables" else stage_templates("testbed")[group]
    assert stage in STAGES
    module = importlib.import_module(f"tasks.{stage}")
    line = [part for name in arguments for part in (f"--{name.replace('_', '-')}", "1")]
    monkeypatch.setattr(module, "check_version", stop)
    with pytest.raises(Reached):
        module.main([*line, "--out", "x", "--stage-version", "1"])


class Reached(Exception):
    """The stage's function was called."""


def stop(*_: object) -> None:
    raise Reached
