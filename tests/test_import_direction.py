"""Imports point one way: flows -> tasks -> rlhf_core; schedulers and trackers stay where they belong."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Modules that no module of a package may import.
DVC = {"dvc", "dvc_data", "dvc_objects"}
FORBIDDEN = {
    "rlhf_core": {"tasks", "flows", "prefect", "mlflow", *DVC},
    "tasks": {"flows", "prefect", "mlflow", *DVC},
    "flows": {"mlflow", *DVC, "torch", "transformers"},
}
#: The rooms of `tasks` whose subject is the tracker or the artifact store.
ALLOWED = {"tasks/tracking": {"mlflow"}, "tasks/dvc": DVC}


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
    wrong = imported(path) & FORBIDDEN[relative.parts[0]] - ALLOWED.get(relative.parent.as_posix(), set())
    assert not wrong, f"{relative} imports {sorted(wrong)}"


def test_imports_inside_functions_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("def f():\n    from prefect.client import x\n    import mlflow.entities\n")
    assert imported(file) == {"prefect", "mlflow"}


#: A private name of a library: `_name`, but not `__name__`.
PRIVATE = re.compile(r"_(?!_).*")


def test_private_names_of_dvc_are_used_in_one_module() -> None:
    """Attributes of DVC's objects are looked for in the whole room, since nothing in it says of which kind they are."""
    for path in sorted((ROOT / "tasks" / "dvc").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        names |= {
            keyword.arg or "" for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                names.add(node.attr)
        found = {name for name in names if PRIVATE.fullmatch(name) or name == "__wrapped__"}
        assert not found or path.name == "internals.py", f"{path.name} uses {sorted(found)} of DVC"
