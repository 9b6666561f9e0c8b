"""The Makefile's promises that can be tested without installing anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("install", "demo", "demo-all", "test", "test-platform", "lint", "bench", "clean")


def make(*arguments: str, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments], cwd=root, env=clean | environment, capture_output=True, text=True
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_make_alone_lists_the_targets() -> None:
    done = make()
    assert done.returncode == 0
    for target in TARGETS:
        assert f"make {target} " in done.stdout


def test_without_a_fitting_python_it_says_how_to_get_one(copy: Path) -> None:
    done = make("install", "PYTHON=", root=copy)
    assert done.returncode != 0
    assert "no Python from 3.11 to 3.13 found" in done.stdout
    assert "uv python install 3.11" in done.stdout
    assert not (copy / ".venv").exists()


def test_unknown_torch_choice_is_refused(copy: Path) -> None:
    done = make("install", "TORCH=tpu", root=copy)
    assert done.returncode != 0
    assert "it must be auto, cpu or cuda" in done.stdout
    assert not (copy / ".venv").exists()


def test_nothing_is_installed_while_the_constraints_are_unchanged(copy: Path) -> None:
    """A stamp with the present checksum stands for a finished installation; a change of the set does not fit it."""
    text = (copy / "constraints.txt").read_bytes() + (copy / "pyproject.toml").read_bytes()
    done = subprocess.run(["git", "hash-object", "--stdin"], input=text, capture_output=True)
    (copy / ".venv").mkdir()
    (copy / ".venv" / ".installed").write_text(f"{done.stdout.decode().strip()}-auto\n")
    assert make("install", root=copy).stdout.strip() == ""
    (copy / "constraints.txt").write_text("torch==0.0\n")
    planned = make("install", "TORCH=tpu", root=copy)
    assert "it must be auto" in planned.stdout, "the changed set starts an installation"


def test_clean_keeps_what_cannot_be_made_again(copy: Path) -> None:
    kept = (".work/platform/prefect.db", ".work/recipes/own/recipe.yaml", "results/x", ".dvc/cache/x", "mlflow.db")
    removed = (".work/checkpoints/x", ".work/times", "report/index.html", ".demo/x", "tasks/__pycache__/x.pyc")
    for name in (*kept, *removed):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("x")
    for _ in range(2):
        done = make("clean", root=copy)
        assert done.returncode == 0, done.stderr
        assert [name for name in (*kept, *removed) if (copy / name).exists()] == list(kept)
