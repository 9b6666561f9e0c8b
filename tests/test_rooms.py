"""Imports point one way, those inside functions and for types included: flows -> tasks -> rlhf_core, between the rooms
of tasks/, and between the packages of rlhf_core; schedulers and trackers stay where they belong."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: The rooms of tasks/, each importing those before it only. Above them are the stages, then the command line.
ORDER = (
    "params", "graph", "running", "data_specs", "scoring", "evaluating", "policy_run", "dvc", "studies", "tracking",
    "reevaluation", "report", "rehearsal", "commands", "stages", "command_line",
)  # fmt: skip
#: Modules that no module of a package may import.
DVC = {"dvc", "dvc_data", "dvc_objects"}
FORBIDDEN = {
    "rlhf_core": {"tasks", "flows", "prefect", "mlflow", *DVC},
    "tasks": {"flows", "prefect", "mlflow", *DVC},
    "flows": {"mlflow", *DVC, "torch", "transformers"},
}
#: The rooms of `tasks` whose subject is the tracker or the artifact store.
ALLOWED = {"tasks/tracking": {"mlflow"}, "tasks/dvc": DVC}


def modules(package: str) -> dict[str, Path]:
    """Files by dotted name; a package's own is its `__init__.py`."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@cache
def imported_names(path: Path) -> set[str]:
    """Dotted names that a file imports anywhere; of `from a import b` both `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def arrows(package: str) -> dict[str, set[str]]:
    """The modules of a package that each of them imports; `__init__.py` counts where it has code."""
    files = modules(package)
    empty = {name for name, path in files.items() if path.name == "__init__.py" and path.read_text().count('"') <= 6}
    return {name: (imported_names(path) & files.keys()) - empty - {name} for name, path in files.items()}


def room_of(module: str) -> str:
    """The room of a module of tasks/."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ORDER else "stages"


def circle(targets: Mapping[str, Iterable[str]]) -> list[str]:
    """A circle of arrows, its first name last again; empty without one."""
    done: set[str] = set()

    def search(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for target in sorted(targets.get(name, ())):
            if found := search(target, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(targets) if (found := search(name, []))), [])


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_module_imports_what_is_above_its_package(package: str) -> None:
    for path in modules(package).values():
        relative = path.relative_to(ROOT)
        names = {name.split(".")[0] for name in imported_names(path)}
        wrong = names & FORBIDDEN[package] - ALLOWED.get(relative.parent.as_posix(), set())
        assert not wrong, f"{relative} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", ["tasks", "flows"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    assert not circle(arrows(package))


def test_no_two_packages_of_the_library_import_each_other() -> None:
    packages: dict[str, set[str]] = defaultdict(set)
    for module, path in modules("rlhf_core").items():
        names = (name.split(".") for name in imported_names(path) if name.startswith("rlhf_core."))
        packages[module.split(".")[1] if "." in module else ""] |= {parts[1] for parts in names}
    pairs = [(one, other) for one in packages for other in packages[one] if one < other and one in packages[other]]
    assert not pairs


def test_rooms_import_only_those_before_them_and_no_module_a_stage() -> None:
    assert {path.parent.name for path in (ROOT / "tasks").glob("*/__init__.py")} < set(ORDER)
    for module, targets in arrows("tasks").items():
        place = ORDER.index(room_of(module))
        above = {room for room in map(room_of, targets - {"tasks"}) if ORDER.index(room) > place or room == "stages"}
        assert not above or module == "tasks", f"{module} imports {above}"
    stages = {name for name in modules("tasks") if room_of(name) == "stages"} - {"tasks"}
    assert not {name for path in modules("flows").values() for name in imported_names(path)} & stages


def test_private_names_of_dvc_are_used_in_one_module() -> None:
    """Attributes of DVC's objects are looked for in the whole room, since nothing in it says of which kind they are."""
    for path in sorted((ROOT / "tasks" / "dvc").glob("*.py")):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                names.add(node.attr)
        found = {name for name in names if re.fullmatch("_(?!_).*", name)}
        assert not found or path.name == "internals.py", f"{path.name} uses {sorted(found)} of DVC"


def test_no_link_of_the_tree_leads_out_of_it() -> None:
    """A committed link to an environment elsewhere would be taken for the environment of every clone."""
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    links = [line.split("\t", 1)[1] for line in listed.splitlines() if line.startswith("120000")]
    assert [name for name in links if not (ROOT / name).resolve().is_relative_to(ROOT)] == []
