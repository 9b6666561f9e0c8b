"""Names and paths reach a stage as they are, or are refused; none is a command."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_core.errors import DataError, RecipeError
from tasks.graph.code_dependencies import Reads
from tasks.graph.dvc_files import _stage
from tasks.graph.items import Item
from tasks.params.pages import entries

NEEDS = {"cores": 1, "gpus": 0, "memory_gb": 2}


def command_of(tmp_path: Path, path: str, run: str = "python -m") -> str:
    item = Item("reward_model", "given", {"model": path, "seed": 0}, "results/a b/0", "hackability", 0)
    return str(_stage(item, tmp_path, run, 1, NEEDS, Reads())["cmd"])


@pytest.mark.parametrize(
    "path", ["a b;touch X;", "a$(touch X)", "a`touch X`", "a|b", "a&b", "a'b", 'a"b', "a\\b", "ü*"]
)
def test_a_path_is_one_word_of_a_stage_s_command(path: str, tmp_path: Path) -> None:
    command = command_of(tmp_path, path, f"{sys.executable} -c 'import sys; print(sys.argv[3])'")
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}\n"
    assert list(tmp_path.iterdir()) == []
    assert shlex.split(command)[-5:] == ["0", "--out", "results/a b/0", "--stage-version", "1"]


@pytest.mark.parametrize("path", ["a\nb", "a\0b", "${HOME}", "--help", "", "a\x1b[2Jb", "a\ud800"])
def test_a_path_that_cannot_be_passed_on_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="stage reward_model-hackability-given-0: --model is"):
        command_of(tmp_path, path)


@pytest.mark.parametrize(
    "name", ["reward_models_m;touch X;.yaml", "reward_models_a b.yaml", "reward_models_$(id).yaml"]
)
def test_a_page_whose_file_name_is_a_command_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "params" / "par"
    folder.mkdir(parents=True)
    (folder / name).write_text("m: {title: M}\n")
    with pytest.raises(DataError, match="the name of a page has letters, digits"):
        entries(tmp_path, Path("params/par"), "reward_models")
