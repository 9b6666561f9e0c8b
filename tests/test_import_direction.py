"""Imports point one way: flows -> tasks -> rlhf_core; schedulers and trackers stay where they belong."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: What no module of a package may import.
FORBIDDEN = {
    "rlhf_core": {"tasks", "flows", "prefect", "mlflow", "dvc"},
    "tasks": {"flows", "prefect", "mlflow", "dvc"},
    "flows": {"mlflow", "dvc", "torch", "transformers"},
}
#: The modules of `tasks` whose subject is the tracker or the artifact store.
ALLOWED = {
    "tasks/tracking/mirror.py": {"mlflow"},
    "tasks/tracking/models.py": {"mlflow"},
    "tasks/dvc/plan.py": {"dvc"},
    "tasks/reevaluation/records.py": {"dvc"},
    "tasks/dvc/remote.py": {"dvc"},
    "tasks/dvc/shared_stage.py": {"dvc"},
}


def imported(path: Path) -> set[str]:
    """Top-level names of everything a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def modules() -> list[Path]:
    return sorted(path for package in FORBIDDEN for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_module_imports_nothing_above_it(path: Path) -> None:
    relative = path.relative_to(ROOT)
    wrong = imported(path) & FORBIDDEN[relative.parts[0]] - ALLOWED.get(relative.as_posix(), set())
    assert not wrong, f"{relative} imports {sorted(wrong)}"


def test_imports_inside_functions_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("def f():\n    from prefect.client import x\n    import mlflow.entities\n")
    assert imported(file) == {"prefect", "mlflow"}
