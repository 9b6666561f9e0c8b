"""Imports point one way, those inside functions and for types included: flows -> tasks -> rlhf_core, and between the
rooms of tasks/; schedulers and trackers stay where they belong."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: The rooms of tasks/, each importing those before it only. Above them are the stages, then the command line.
ORDER = (
    "params", "graph", "running", "data_specs", "scoring", "evaluating", "policy_run", "dvc", "studies", "tracking",
    "reevaluation", "report", "rehearsal", "commands",
)  # fmt: skip
STAGES, COMMAND_LINE = "stages", "command_line"
#: Package outside all rooms: `tasks/__init__.py`, which every module in the package imports without naming it.
PACKAGE = "tasks"
#: Modules that no module of a package may import.
DVC = {"dvc", "dvc_data", "dvc_objects"}
FORBIDDEN = {
    "rlhf_core": {"tasks", "flows", "prefect", "mlflow", *DVC},
    "tasks": {"flows", "prefect", "mlflow", *DVC},
    "flows": {"mlflow", *DVC, "torch", "transformers"},
}
#: The rooms of `tasks` whose subject is the tracker or the artifact store.
ALLOWED = {"tasks/tracking": {"mlflow"}, "tasks/dvc": DVC}
#: A private name of a library: `_name`, but not `__name__`.
PRIVATE = re.compile(r"_(?!_).*")

Arrows = dict[str, set[str]]


def modules(package: str) -> dict[str, Path]:
    """Files by dotted name; a package's own is its `__init__.py`."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imported_names(path: Path) -> set[str]:
    """Dotted names that a file imports anywhere; of `from a import b` both `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0, f"{path}: a relative import"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def module_arrows(package: str) -> Arrows:
    """The modules of a package that each of them imports; a package counts where its own file has code."""
    files = modules(package)
    empty = {name for name, path in files.items() if path.name == "__init__.py" and not _has_code(path)}
    return {name: (imported_names(path) & files.keys()) - empty - {name} for name, path in files.items()}


def _has_code(path: Path) -> bool:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return not all(isinstance(node, ast.Expr) for node in body)


def room_of(module: str) -> str:
    """The room of a module of tasks/."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in ORDER:
        return parts[1]
    return parts[-1] if module in (PACKAGE, f"{PACKAGE}.{COMMAND_LINE}") else STAGES


def circle(arrows: Mapping[str, Iterable[str]]) -> list[str]:
    """A circle of arrows, its first name last again; empty without one."""
    done: set[str] = set()

    def search(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for target in sorted(arrows.get(name, ())):
            if found := search(target, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(arrows) if (found := search(name, []))), [])


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_module_imports_what_is_above_its_package(package: str) -> None:
    for path in modules(package).values():
        relative = path.relative_to(ROOT)
        names = {name.split(".")[0] for name in imported_names(path)}
        wrong = names & FORBIDDEN[package] - ALLOWED.get(relative.parent.as_posix(), set())
        assert not wrong, f"{relative} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", ["tasks", "flows"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    assert not circle(module_arrows(package))


def test_rooms_import_only_those_before_them() -> None:
    rooms = {path.parent.name for path in (ROOT / "tasks").glob("*/__init__.py")}
    assert rooms == set(ORDER)
    order = (*ORDER, STAGES, COMMAND_LINE)
    for module, targets in module_arrows("tasks").items():
        own = room_of(module)
        others = {room_of(target) for target in targets} - {own, PACKAGE} if own != PACKAGE else set()
        assert not {room for room in others if order.index(room) >= order.index(own)}, f"{module} imports a room above"


def test_no_module_imports_a_stage() -> None:
    stages = {name for name in modules("tasks") if room_of(name) == STAGES}
    assert len(stages) >= 20
    for package in ("tasks", "flows"):
        for name, path in modules(package).items():
            wrong = imported_names(path) & stages
            assert not wrong, f"{name} imports the stage {sorted(wrong)}"


def test_no_module_only_passes_on_what_it_imports() -> None:
    for package in ("tasks", "flows"):
        for name, path in modules(package).items():
            body = ast.parse(path.read_text(encoding="utf-8")).body
            own = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)]
            imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
            calls = [node for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
            assert own or calls or not imports, f"{name} defines nothing of its own"


def test_private_names_of_dvc_are_used_in_one_module() -> None:
    """Attributes of DVC's objects are looked for in the whole room, since nothing in it says of which kind they are."""
    for path in sorted((ROOT / "tasks" / "dvc").glob("*.py")):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Call):
                names |= {keyword.arg or "" for keyword in node.keywords}
            elif isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                names.add(node.attr)
        found = {name for name in names if PRIVATE.fullmatch(name) or name == "__wrapped__"}
        assert not found or path.name == "internals.py", f"{path.name} uses {sorted(found)} of DVC"


def test_no_link_of_the_tree_leads_out_of_it() -> None:
    """A committed link to an environment elsewhere would be taken for the environment of every clone."""
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    links = [line.split("\t", 1)[1] for line in listed.splitlines() if line.startswith("120000")]
    assert [name for name in links if not (ROOT / name).resolve().is_relative_to(ROOT)] == []
