"""A stage's typed function is its command line: the graph's lines fit, and what is missing is named."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from flows.stage_run import explain_failure
from rlhf_core.errors import RecipeError, UserCodeError
from tasks.graph.dvc_files import STAGES, pipeline_file
from tasks.graph.matrix import build
from tasks.params.pages import Address
from tasks.running.stage import argument_parser, command_line, run_main

ROOT = Path(__file__).resolve().parents[2]


def test_arguments_reach_the_function_with_their_types() -> None:
    calls: list[tuple[Any, ...]] = []

    def stage(
        spec_path: Annotated[Path, "spec (YAML)"],
        reward_model: Path | None,
        seeds: tuple[int, ...],
        paper: str,
        out: Path,
    ) -> None:
        """Does something."""
        calls.append((spec_path, reward_model, seeds, paper, out))

    line = ["--spec", "a.yaml", "--seeds", "0", "1", "--paper", "segment", "--out", "x"]
    command_line(stage)(line)
    command_line(stage)([*line, "--reward-model", "m"])
    assert calls == [
        (Path("a.yaml"), None, (0, 1), "segment", Path("x")),
        (Path("a.yaml"), Path("m"), (0, 1), "segment", Path("x")),
    ]
    shown = argument_parser(stage).format_help()
    assert "Does something." in shown
    assert "spec (YAML)" in shown


@dataclass(frozen=True)
class Weights:
    """Made-up inputs."""

    sft: Path
    seeds: Annotated[tuple[int, ...], "which of them"] = ()


@dataclass(frozen=True)
class Above:
    """Made-up inputs, some of them of a kind of their own."""

    data: Path
    weights: Weights
    holistic: Path | None = None

    def __post_init__(self) -> None:
        if self.holistic is not None and not self.weights.seeds:
            raise RecipeError("--holistic goes with --seeds")


def test_arguments_that_belong_together_are_a_dataclass(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[Any, ...]] = []

    def stage(spec_path: Address, above: Above, out: Path, version: int | None = None) -> None:
        calls.append((spec_path, above, out, version))

    line = ["--spec", "a.yaml", "--data", "d", "--sft", "s", "--out", "x"]
    command_line(stage)(line)
    command_line(stage)([*line, "--seeds", "1", "2", "--holistic", "h"])
    assert [above for _, above, *_ in calls] == [
        Above(Path("d"), Weights(Path("s"))),
        Above(Path("d"), Weights(Path("s"), (1, 2)), Path("h")),
    ]
    assert "which of them" in argument_parser(stage).format_help()
    with pytest.raises(RecipeError, match=r"--holistic goes with --seeds \(settings: a.yaml\)"):
        command_line(stage)([*line, "--holistic", "h"])
    with pytest.raises(SystemExit):
        command_line(stage)(["--spec", "a.yaml", "--data", "d", "--out", "x"])
    assert "--sft" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "seen"), [("results/testbed/segment/policy/x/0", ""), ("results/small/segment/policy/x/0", "0")]
)
def test_the_testbed_runs_on_the_cpu_whoever_starts_it(monkeypatch: pytest.MonkeyPatch, out: str, seen: str) -> None:
    def stage(out: Path) -> None: ...

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    command_line(stage)(["--out", out])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_an_error_of_a_users_function_is_one_line_after_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stage(spec_path: Address, out: Path) -> None:
        try:
            raise TimeoutError("the server timed out")
        except TimeoutError as error:
            raise UserCodeError("reward function own:f failed: TimeoutError (line 3 of own.py)") from error

    arguments = ["--spec", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as stopped:
        run_main(lambda _: command_line(stage)(arguments))
    *before, last = capsys.readouterr().err.splitlines()
    assert last == "error: reward function own:f failed: TimeoutError (line 3 of own.py)"
    assert before[0].startswith("Traceback")
    assert before[-1] == "TimeoutError: the server timed out"
    failure = explain_failure("policy-a-0", stopped.value.code, "\n".join([*before, last]))  # type: ignore[arg-type]
    assert str(failure).endswith(f"exit code 1: {last.removeprefix('error: ')}")
    assert failure.retry, "a server may answer again"


def lines() -> dict[str, str]:
    """A command line of each module with each set of arguments at testbed scale."""
    found = {}
    for folder, stages in build(ROOT).items():
        if folder.parts and folder.parts[1] != "testbed":
            continue
        for stage in pipeline_file(ROOT, stages, folder)["stages"].values():
            found.setdefault(" ".join(w for w in stage["cmd"].split() if w.startswith(("--", "tasks."))), stage["cmd"])
    return found


@pytest.mark.parametrize("line", lines().values(), ids=lines())
def test_the_graphs_command_lines_fit_the_stages(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _python, _m, name, *arguments = line.split()
    assert name.removeprefix("tasks.") in STAGES
    module = importlib.import_module(name)
    monkeypatch.setattr("tasks.running.stage.check_version", stop)
    with pytest.raises(Reached):
        module.main(arguments)


class Reached(Exception):
    """The stage's function was called."""


def stop(*_: object) -> None:
    raise Reached
