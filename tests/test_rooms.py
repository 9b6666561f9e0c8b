"""Arrows between the modules of tasks/ and flows/ point one way; imports inside functions and for types count."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: The rooms of tasks/, each importing those before it only. Above them are the stages, then the command line.
ORDER = (
    "params",
    "graph",
    "running",
    "data_specs",
    "scoring",
    "evaluating",
    "policy_run",
    "dvc",
    "studies",
    "tracking",
    "reevaluation",
    "report",
    "rehearsal",
    "commands",
)
STAGES, COMMAND_LINE = "stages", "command_line"
#: Package outside all rooms: `tasks/__init__.py`, which every module in the package imports without naming it.
PACKAGE = "tasks"

Arrows = dict[str, set[str]]


def modules(root: Path, package: str) -> dict[str, Path]:
    """Files by dotted name; a package's own is its `__init__.py`."""
    paths = sorted((root / package).rglob("*.py"))
    names = [path.relative_to(root).with_suffix("").parts for path in paths]
    return {
        ".".join(parts[:-1] if parts[-1] == "__init__" else parts): path
        for parts, path in zip(names, paths, strict=True)
    }


def imported_names(path: Path) -> set[str]:
    """Dotted names that a file imports anywhere; of `from a import b` both `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0, f"{path}: a relative import"
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= submodules | {node.module}
    return names


def module_arrows(root: Path, package: str) -> Arrows:
    """The modules of a package that each of them imports; a package counts where its own file has code."""
    files = modules(root, package)
    empty = {name for name, path in files.items() if path.name == "__init__.py" and not _has_code(path)}
    known = set(files) - empty
    return {name: (imported_names(path) & known) - {name} for name, path in files.items()}


def _has_code(path: Path) -> bool:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return not all(isinstance(node, ast.Expr) for node in body)


def room_of(module: str) -> str:
    """The room of a module of tasks/."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in ORDER:
        return parts[1]
    if module in (PACKAGE, f"{PACKAGE}.{COMMAND_LINE}"):
        return parts[-1]
    return STAGES


def room_arrows(arrows: Arrows) -> Arrows:
    """The rooms that each room imports."""
    found: Arrows = {}
    for module, targets in arrows.items():
        own = found.setdefault(room_of(module), set())
        own |= {room_of(target) for target in targets} - {room_of(module), PACKAGE}
    return found


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


def classes(package: str) -> dict[str, list[str]]:
    """Files by the names of the classes that they define."""
    found: dict[str, list[str]] = {}
    for path in modules(ROOT, package).values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    return found


@pytest.mark.parametrize("package", ["tasks", "flows"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    assert not circle(module_arrows(ROOT, package))


def test_no_rooms_import_each_other_in_a_circle() -> None:
    assert not circle(room_arrows(module_arrows(ROOT, "tasks")))


def test_rooms_import_only_those_before_them() -> None:
    order = (*ORDER, STAGES, COMMAND_LINE)
    for room, targets in room_arrows(module_arrows(ROOT, "tasks")).items():
        if room != PACKAGE:
            above = {target for target in targets if order.index(target) >= order.index(room)}
            assert not above, f"{room} imports {sorted(above)}"


def test_every_room_is_in_the_order() -> None:
    rooms = {path.parent.name for path in (ROOT / "tasks").glob("*/__init__.py")}
    assert rooms == set(ORDER)


def test_no_module_imports_a_stage() -> None:
    stages = {name for name in modules(ROOT, "tasks") if room_of(name) == STAGES}
    assert len(stages) >= 20
    for package in ("tasks", "flows"):
        for name, path in modules(ROOT, package).items():
            wrong = imported_names(path) & stages
            assert not wrong, f"{name} imports the stage {sorted(wrong)}"


def test_no_module_only_passes_on_what_it_imports() -> None:
    for package in ("tasks", "flows"):
        for name, path in modules(ROOT, package).items():
            body = ast.parse(path.read_text(encoding="utf-8")).body
            own = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)]
            imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
            calls = [node for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
            assert own or calls or not imports, f"{name} defines nothing of its own"


def test_no_two_classes_of_tasks_and_flows_share_a_name() -> None:
    tasks, flows = classes("tasks"), classes("flows")
    files = {name: [*tasks.get(name, []), *flows.get(name, [])] for name in {*tasks, *flows}}
    assert not {name: found for name, found in files.items() if len(found) > 1}


def test_circles_and_imports_inside_functions_are_seen(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "__init__.py").write_text('"""A toy."""\n')
    (tmp_path / "toy" / "a.py").write_text("def f():\n    from toy.b import g\n")
    (tmp_path / "toy" / "b.py").write_text("if TYPE_CHECKING:\n    from toy import c\n")
    (tmp_path / "toy" / "c.py").write_text("import toy.a\n")
    arrows = module_arrows(tmp_path, "toy")
    assert arrows == {"toy": set(), "toy.a": {"toy.b"}, "toy.b": {"toy.c"}, "toy.c": {"toy.a"}}
    assert circle(arrows) == ["toy.a", "toy.b", "toy.c", "toy.a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_no_link_of_the_tree_leads_out_of_it() -> None:
    """A committed link to an environment elsewhere would be taken for the environment of every clone."""
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    links = [line.split("\t", 1)[1] for line in listed.splitlines() if line.startswith("120000")]
    assert [name for name in links if not (ROOT / name).resolve().is_relative_to(ROOT)] == []
